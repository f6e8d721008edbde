"""`capplan mcp`: the questions of capplan as read-only tools of the Model Context Protocol."""

from capplan.cli.groups import grouped


@grouped
def command() -> int:
    """Serve fit, estimate, fleet, explain and check as read-only tools of the Model Context Protocol, over stdin and stdout."""
    from capplan.cli.mcp_tools import server

    server().run()
    return 0
