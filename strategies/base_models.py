"""Base class of server sides that exchange the weights of several models, by the names of the models."""

from collections.abc import Mapping

from hetfl_flwr import (
    EMPTY,
    Arrays,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    SplitModel,
    models_by_name,
    weights,
)


class ModelsStrategy(KnowledgeStrategy):
    """A strategy that builds the models that clients have registered, and leaves out clients with other models.

    If a client's model cannot be built, it receives nothing, and no upload is expected from it. An algorithm calls
    `build` in `initial`.

    Attributes
    ----------
    models : dict of str to SplitModel
        The models by name, with their initial weights: those of the first round, and those of current clients.
    """

    averages = True

    def __init__(self) -> None:
        self.models: dict[str, SplitModel] = {}

    def build(self, roster: Roster) -> Mapping[str, SplitModel]:
        """Build the models of the clients before round 1, and return them.

        Raises
        ------
        FederationError, ModelError
            As in `hetfl_flwr.models_by_name`.
        """
        self.models = models_by_name(roster, self.config)
        self._first = set(self.models)
        self._barred = {member.node for member in roster if member.model not in self.models}
        return self.models

    def check(self, roster: Roster) -> None:
        """Refuse different classes or inputs; build the models of new clients, and drop models without clients."""
        _ = roster.shape, roster.classes
        if self.models:
            wanted = {*self._first, *(member.model for member in [*self.roster, *roster])}
            self.models = {name: model for name, model in self.models.items() if name in wanted}
            if new := [one for one in self.joining(roster) if one.model not in self.models]:
                self.models |= models_by_name(Roster(new), self.config)

    def joining(self, roster: Roster) -> list[Member]:
        """Return the clients that take part in training; before the first round, none."""
        return [member for member in roster if self.models and member.node not in self._barred]

    def part(self, model: SplitModel) -> PayloadSpec:
        """Declare the part of a model that is exchanged: by default, all weights."""
        return weights(model)

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect the weights of the client's model."""
        model = self.models.get(member.model)
        return EMPTY if model is None else self.part(model)

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send the same as for training."""
        return self.download_for(member, server_state, 0)
