"""Variables that Kubernetes sets for Services and a program's own settings."""

from lopa.cli.program.service_links import service_links


def test_every_variable_of_a_service_is_found() -> None:
    """The names that Kubernetes documents for the Service redis-primary, with a named port and two protocols."""
    links = {
        "REDIS_PRIMARY_SERVICE_HOST": "10.0.0.11",
        "REDIS_PRIMARY_SERVICE_PORT": "6379",
        "REDIS_PRIMARY_SERVICE_PORT_CLIENT_2": "6379",
        "REDIS_PRIMARY_PORT": "tcp://10.0.0.11:6379",
        "REDIS_PRIMARY_PORT_6379_TCP": "tcp://10.0.0.11:6379",
        "REDIS_PRIMARY_PORT_6379_TCP_PROTO": "tcp",
        "REDIS_PRIMARY_PORT_6379_TCP_PORT": "6379",
        "REDIS_PRIMARY_PORT_6379_TCP_ADDR": "10.0.0.11",
        "REDIS_PRIMARY_PORT_53_UDP": "udp://10.0.0.11:53",
    }
    own = {"REDIS_PRIMARY_MAX_TOKENS": "3", "REDIS_PRIMARY_PORT_RANGE": "1", "REDIS_PRIMARY": "1", "PORT": "tcp://x"}
    assert service_links(links | own) == set(links)


def test_port_of_the_container_replaces_the_link() -> None:
    assert service_links({"A_SERVICE_HOST": "10.0.0.1", "A_PORT": "8000"}) == {"A_SERVICE_HOST"}
    assert service_links({"A_PORT": "tcp://10.0.0.1:8000"}) == set(), "without a host Kubernetes did not set it"


def test_services_whose_names_begin_alike() -> None:
    links = {"A_SERVICE_HOST": "1", "A_B_SERVICE_HOST": "2", "A_B_PORT": "tcp://2:1", "A_B_SERVICE_PORT": "1"}
    assert service_links(links | {"A_C_PORT": "tcp://3:1"}) == set(links)
