"""What is measured of every HTTP interface. Names and meanings are the catalogue's."""

from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, histogram

HTTP_REQUESTS = counter(catalogue.HTTP_REQUESTS)
HTTP_MALFORMED = counter(catalogue.HTTP_MALFORMED)
HTTP_REQUEST_SECONDS = histogram(catalogue.HTTP_REQUEST_SECONDS)
