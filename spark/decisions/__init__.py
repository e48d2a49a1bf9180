"""The decisions of the services, taken again. They know neither the services nor `once verify`."""
