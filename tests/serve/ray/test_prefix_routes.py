"""The choice of a replica: longest prefix, bounded load, bounded memory."""

import random

from lopa.serve.ray.affinity import PrefixRoutes, ranked_replicas


def test_the_replica_with_the_longest_prefix_is_found() -> None:
    routes: PrefixRoutes[str] = PrefixRoutes()
    routes.record(["s", "s1"], "one")
    routes.record(["s", "s2", "s2x"], "two")
    assert routes.find(["s", "s1", "s1x"], {"one", "two"}) == "one"
    assert routes.find(["s", "s2", "s2x", "s2xy"], {"one", "two"}) == "two"
    assert routes.find(["s", "s3"], {"one", "two"}) == "two"  # the last one that computed it
    assert routes.find(["other"], {"one", "two"}) is None
    assert routes.find([], {"one", "two"}) is None
    # A replica that has gone: a shorter prefix of another one counts.
    assert routes.find(["s", "s1", "s1x"], {"two"}) == "two"
    assert routes.find(["s", "s1"], set()) is None


def test_old_prefixes_are_forgotten_and_the_longest_first() -> None:
    routes: PrefixRoutes[int] = PrefixRoutes(max_routes=10)
    routes.record(["a", "ab", "abc"], 1)
    for number in range(8):
        routes.record([f"x{number}"], 2)
    assert len(routes._replicas) == 10
    assert routes.find(["a", "ab", "abc"], {1}) == 1
    assert routes.find(["abc"], {1}) is None
    routes.record(["a"], 3)  # used again
    for number in range(8):
        routes.record([f"y{number}"], 2)
    assert routes.find(["a", "ab"], {1, 3}) == 3
    assert routes.find(["ab"], {1}) is None


def test_load_is_bounded() -> None:
    requests = {"home": 0, "idle": 0, "busy": 5}
    for excess in range(8):
        ranks = ranked_replicas("home", {**requests, "home": excess}, max_excess=4)
        assert sorted(each for rank in ranks for each in rank) == ["busy", "home", "idle"]
        assert (ranks[0] == ["home"]) == (excess < 4)
        if excess >= 4:
            assert ranks[0] == ["idle"]


def test_without_a_prefix_the_least_busy_replicas_come_first() -> None:
    random.seed(0)
    requests = {"a": 2, "b": 0, "c": 0, "d": 1}
    found = [ranked_replicas(None, requests, 4) for _ in range(50)]
    assert all([sorted(rank) for rank in ranks] == [["b", "c"], ["d"], ["a"]] for ranks in found)
    assert {ranks[0][0] for ranks in found} == {"b", "c"}
    assert ranked_replicas(None, {}, 4) == []
