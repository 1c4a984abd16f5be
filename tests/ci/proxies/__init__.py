"""Real proxies, nginx and HAProxy: between the client and the platform, and between the platform and a receiver.

``calls`` loads a proxy with named calls and compares, name by name, what the client says with what the proxy and the
platform have seen; ``copies`` does the same with message copies. ``scenarios`` are what is done to a proxy meanwhile.
``python -m tests.ci.proxies`` records the long form for the page on reliability.
"""
