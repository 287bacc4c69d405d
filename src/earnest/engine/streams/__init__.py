"""What happens, told to those who watch: of one run, as text, or of a whole scope."""
