"""AGG, server side: clients share public samples before round 1, and exchange nothing after that.

A baseline of Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", 2021.
"""

from hetfl_flwr import Member, Roster, SampleLimits, Sharing, max_drawn
from strategies.local import Local


class AGG(Local):
    """Local training on own data and all public samples, to measure the effect of shared rows. A baseline of FedH2L.

    Wire   nothing either way. Once, before round 1: each client's public samples with their labels, up and down to all
           others.
    Needs  equal classes, one shape of input
    State  none.
    """

    sends = "public samples"
    exchanges = True
    sharing = Sharing(labelled=True, to_clients=True)

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with different inputs or classes.

        Raises
        ------
        FederationError
            If there are such clients. The message names them.
        """
        roster.check_sharing("agg")

    def sample_limits(self, member: Member) -> SampleLimits:
        """Return the number of training samples, and the largest number of samples seen in a round's batches."""
        return SampleLimits(
            member.train, max_drawn(self.config, member.train + self.roster.public_rows_of_others(member))
        )
