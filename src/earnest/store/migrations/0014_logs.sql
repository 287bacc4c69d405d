-- Log lines: what a handler wrote for people, per attempt.
SELECT;
