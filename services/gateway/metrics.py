"""What the gateway measures of payments and of who is let in. Names and meanings are the catalogue's."""

from shared.telemetry import catalogue
from shared.telemetry.instruments import at_zero, counter, gauge

HTTP_REQUESTS_IN_FLIGHT = gauge(catalogue.HTTP_REQUESTS_IN_FLIGHT)
HTTP_PAYMENTS_REFUSED = counter(catalogue.HTTP_PAYMENTS_REFUSED)
HTTP_ACCESS_REFUSED = counter(catalogue.HTTP_ACCESS_REFUSED)
API_KEYS_READ = counter(catalogue.API_KEYS_READ)

at_zero(API_KEYS_READ, ("taken", "refused"))
