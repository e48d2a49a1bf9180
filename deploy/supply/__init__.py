"""The supply chain: what is installed, as an SBOM; known vulnerabilities of it; digests of the images built on."""
