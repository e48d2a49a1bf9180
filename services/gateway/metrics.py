"""What the gateway measures of its HTTP side. Names and meanings are the catalogue's."""

from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, gauge, histogram

HTTP_REQUESTS = counter(catalogue.HTTP_REQUESTS)
HTTP_REQUEST_SECONDS = histogram(catalogue.HTTP_REQUEST_SECONDS)
HTTP_REQUESTS_IN_FLIGHT = gauge(catalogue.HTTP_REQUESTS_IN_FLIGHT)
HTTP_PAYMENTS_REFUSED = counter(catalogue.HTTP_PAYMENTS_REFUSED)
