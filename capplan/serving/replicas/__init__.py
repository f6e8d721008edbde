"""Several replicas behind one dispatcher: pools of engines, routing, hedges, hand-over."""
