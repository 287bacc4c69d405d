"""`earnest bench`: how fast this installation is on this machine, beside PostgreSQL and FastAPI
without it. Everything takes the way that a user's own work takes."""
