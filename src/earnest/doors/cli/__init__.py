"""The command line: `program.run` reads it and calls; one file for each noun.

Commands translate and decide nothing. What they stand on (a database, a worker, the API's server)
is handed in as `parts`, and so are the commands of apps; nothing heavy is imported before a
command needs it.
"""
