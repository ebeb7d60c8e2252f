"""AGG, server side: public samples are shared before round 1, and nothing is exchanged after that.

A baseline of Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", 2021.
"""

from hetfl_flwr import Member, Roster, SampleLimits, Sharing, max_drawn
from strategies.local import Local


class AGG(Local):
    """Local training on the own data and all public samples: what shared rows alone are worth. A baseline of FedH2L.

    Wire   nothing either way. Once, before round 1: each client's public samples with their labels, up and down to all
           others.
    Needs  equal classes, one shape of input
    State  none.
    """

    sends = "public samples"
    exchanges = True
    sharing = Sharing(labelled=True, to_clients=True)

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with inputs or classes different from the others'.

        Raises
        ------
        FederationError
            Names the clients.
        """
        roster.check_sharing("agg")

    def sample_limits(self, member: Member) -> SampleLimits:
        """Return the client's training samples, and these and all others' public samples in a round's batches."""
        return SampleLimits(
            member.train, max_drawn(self.config, member.train + self.roster.public_rows_of_others(member))
        )
