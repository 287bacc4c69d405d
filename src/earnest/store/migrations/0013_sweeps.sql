-- Sweeps: what a provider did, compared with what is recorded.
SELECT;
