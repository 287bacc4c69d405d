"""The HTTP API: `application.build_api` makes it, `serving.Serving` listens.

Nothing here imports a server but `serving`. What every request passes is in `gate`, what a route
looks like in `routes`, what leaves as a body in `shapes`.
"""
