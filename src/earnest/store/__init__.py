"""Facts in PostgreSQL: one promise is one transaction, usually one statement."""
