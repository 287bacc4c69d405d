"""What a provider did, compared with what is recorded."""
