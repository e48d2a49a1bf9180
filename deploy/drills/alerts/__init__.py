"""One drill for each alert: a real fault on the monitored stack, healed again.

`registry` maps each alert to its fault; `firing` is what all of these drills do; the other modules hold the faults, one
family each.
"""
