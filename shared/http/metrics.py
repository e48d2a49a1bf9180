"""Metrics of every HTTP interface. The catalogue defines names and meanings."""

from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, histogram

HTTP_REQUESTS = counter(catalogue.HTTP_REQUESTS)
HTTP_MALFORMED = counter(catalogue.HTTP_MALFORMED)
HTTP_REQUEST_SECONDS = histogram(catalogue.HTTP_REQUEST_SECONDS)
