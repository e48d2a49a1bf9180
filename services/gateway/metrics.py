"""What the gateway measures of payments. Names and meanings are the catalogue's."""

from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, gauge

HTTP_REQUESTS_IN_FLIGHT = gauge(catalogue.HTTP_REQUESTS_IN_FLIGHT)
HTTP_PAYMENTS_REFUSED = counter(catalogue.HTTP_PAYMENTS_REFUSED)
