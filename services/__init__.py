"""The services. Each one is pure domain logic, adapted to the runtime of `shared`; no service sees another."""
