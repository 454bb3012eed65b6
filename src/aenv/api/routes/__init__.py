"""One module per noun of the API: each parses, calls one service and shapes the answer."""
