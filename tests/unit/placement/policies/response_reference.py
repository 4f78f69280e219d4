"""The divisions of the schedulers of mean response time in plain Python: the reference of the compiled rules."""

import math
from dataclasses import dataclass

from placement.policies.schedulers.response.tables import fitted_power, hull_of
from placement.policies.schedulers.response.widths import fewest_width, gain, peak_width

_PRICES, _ROUNDS = (1e-9, 1e6), 60


@dataclass(frozen=True)
class PlainJob:
    """Speeds on 0 to all nodes, the work left as its order counts it, and the most nodes that it can use."""

    speeds: tuple[float, ...]
    work: float
    most: int

    def time_left(self, nodes):
        if nodes >= len(self.speeds) or self.speeds[nodes] <= 0:
            return math.inf
        return self.work / self.speeds[nodes]


def divided(scheduler, jobs, nodes):
    """The nodes of each job, by the name of the scheduler and its rule of widths."""
    base, _, filling = scheduler.name.partition("+")
    if base in ("equi", "hesrpt", "node-price"):
        return {"equi": equal, "hesrpt": by_power, "node-price": priced}[base](jobs, nodes)
    shares, left = in_order(scheduler.widths, jobs, nodes)
    if filling == "marginal":
        fill_marginal(jobs, shares, left)
    elif filling == "fill" or base == "waterfill":
        fill_shortest(jobs, shares, left)
    return shares


def in_order(widths, jobs, left):
    shares, waiting = [0] * len(jobs), list(range(len(jobs)))
    while left > 0 and waiting:
        offers = [(number, *widths.offer(jobs[number].speeds, left)) for number in waiting]
        offers = [offer for offer in offers if offer[1]]
        if not offers:
            break
        chosen, width, _ = min(offers, key=lambda offer: jobs[offer[0]].work * offer[2])
        shares[chosen] = min(width, jobs[chosen].most)
        left -= shares[chosen]
        waiting = [number for number, _, _ in offers if number != chosen]
    return shares, left


def fill_shortest(jobs, shares, left):
    while left > 0:
        nearest = min(
            (job.time_left(share) for job, share in zip(jobs, shares, strict=True)), default=math.inf
        )
        for more in range(1, left + 1):
            time, number = min(
                ((job.time_left(shares[number] + more), number) for number, job in enumerate(jobs)),
                default=(math.inf, 0),
            )
            if time < nearest:
                shares[number] += more
                left -= more
                break
        else:
            return


def fill_marginal(jobs, shares, left):
    for _ in range(left):
        running = [n for n, job in enumerate(jobs) if 0 < shares[n] < len(job.speeds) - 1]
        best = max(running, key=lambda n: gain(jobs[n].speeds, shares[n] + 1), default=None)
        if best is None or gain(jobs[best].speeds, shares[best] + 1) < 1e-9:
            return
        shares[best] += 1


def equal(jobs, left):
    shares = [0] * len(jobs)
    growing = [(n, fewest_width(job.speeds), peak_width(job.speeds)) for n, job in enumerate(jobs)]
    while left > 0:
        growing = [
            (n, fewest, peak)
            for n, fewest, peak in growing
            if shares[n] < peak and (shares[n] or fewest <= left)
        ]
        if not growing:
            break
        least, fewest, _ = min(growing, key=lambda each: shares[each[0]])
        more = 1 if shares[least] else fewest
        shares[least] += more
        left -= more
    return shares


def by_power(jobs, nodes):
    if not jobs:
        return []
    ordered = sorted(range(len(jobs)), key=lambda n: alone(jobs[n]), reverse=True)
    whole = power_shares(len(jobs), sum(fitted_power(job.speeds) for job in jobs) / len(jobs), nodes)
    shares = [0] * len(jobs)
    for n, share in zip(ordered, whole, strict=True):
        share = min(share, jobs[n].most)
        shares[n] = share if jobs[n].speeds[share] > 0 else 0
    return shares


def alone(job):
    return job.work / job.speeds[fewest_width(job.speeds)]


def power_shares(jobs, power, nodes):
    exponent = 1 / (1 - power)
    exact = [
        nodes * ((rank / jobs) ** exponent - ((rank - 1) / jobs) ** exponent) for rank in range(1, jobs + 1)
    ]
    whole = [math.floor(share) for share in exact]
    by_fraction = sorted(range(jobs), key=lambda rank: whole[rank] - exact[rank])
    for rank in by_fraction[: nodes - sum(whole)]:
        whole[rank] += 1
    return whole


def priced(jobs, nodes):
    if not jobs:
        return []
    hulls = [hull_of(job.speeds) for job in jobs]
    work = [alone(job) for job in jobs]
    mean = sum(work) / len(work)
    expected = [mean / (mean + each) if each > 0 else 1.0 for each in work]
    low, high = _PRICES
    for _ in range(_ROUNDS):
        price = math.sqrt(low * high)
        if sum(wanted(hulls, expected, price)) > nodes:
            low = price
        else:
            high = price
    shares = wanted(hulls, expected, high)
    for n in reversed(range(len(shares))):
        if sum(shares) > nodes:
            shares[n] = 0
    worth = [cost(hull, high * each) for hull, each in zip(hulls, expected, strict=True)]
    while (left := nodes - sum(shares)) > 0:
        best, largest, step = -1, 0.0, 0
        for n, job in enumerate(jobs):
            for more in range(1, min(left, len(job.speeds) - 1 - shares[n]) + 1):
                gained = job.speeds[shares[n] + more] - job.speeds[shares[n]]
                worthwhile = worth[n] * gained / job.speeds[fewest_width(job.speeds)] / more
                if worthwhile > largest:
                    best, largest, step = n, worthwhile, more
        if best < 0:
            break
        shares[best] += step
    return shares


def wanted(hulls, expected, price):
    prices = [price / cost(hull, price * each) for hull, each in zip(hulls, expected, strict=True)]
    return [
        hull.widths[sum(slope >= each for slope in hull.slopes)]
        for hull, each in zip(hulls, prices, strict=True)
    ]


def cost(hull, price):
    """The least cost of a unit of work, min over w of (1 + u w) / s(w)."""
    vertex = sum(bound >= price for bound in hull.bounds)
    return (1 + price * hull.widths[vertex]) / hull.speedups[vertex]
