"""The models of tests/ddp/options/option_models.h in Python: same values, same names."""

import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

ROWS = 2  # of one micro-batch of one rank
KINDS = 3  # of graphs that "branches" goes through
VOCABULARY = 10


def wave(sizes, phase):
    numel = torch.Size(sizes).numel()
    values = torch.arange(numel, dtype=torch.float64) * 1.7 + phase
    return torch.sin(values).view(sizes)


def fill_parameters(module, phase=0.3):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(wave(parameter.shape, phase) * 0.5)
            phase += 1.0


def inputs(rows, step):
    return wave((rows, 2, 4), 0.1 + step)


class Model(nn.Module):
    """`kind` is which of several graphs forward() builds."""

    def __init__(self):
        super().__init__()
        self.kind = 2

    def finish(self):
        self.to(torch.float64)
        fill_parameters(self)
        return self

    @staticmethod
    def inputs(rows, step):
        return inputs(rows, step)


class Mlp(Model):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Norm(Model):
    """Batch norm has buffers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)
        self.bn, self.c = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.b(torch.tanh(self.a(x.flatten(0, 1))))
        return self.c(torch.tanh(self.bn(hidden)))


class Embedding(Model):
    sparse = False

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 4, sparse=self.sparse)
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.b(torch.tanh(self.a(self.table(x))))

    @staticmethod
    def inputs(rows, step):
        return (torch.arange(rows * 2) * 7 + step).view(rows, 2) % VOCABULARY


class SparseEmbedding(Embedding):
    sparse = True


class Branches(Model):
    """Kind 0 leaves `right` unused, 1 `left`; `never` is in no graph."""

    def __init__(self):
        super().__init__()
        self.first, self.never = nn.Linear(4, 6), nn.Linear(2, 2)
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.kind == 0:
            return self.head(torch.tanh(self.left(x)))
        if self.kind == 1:
            return self.head(torch.tanh(self.right(x)))
        return self.head(torch.tanh(self.left(x)) * self.right(x))


class Reused(Model):
    """`inner` is used three times."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def block(self, x):
        return torch.tanh(self.inner(x))

    def forward(self, x):
        return self.last(self.block(self.block(self.block(self.first(x)))))


class Checkpointed(Reused):
    """`inner` is used in two nested backward passes and outside of them."""

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return self.last(self.block(x))


class Tied(Model):
    """One weight at two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.tanh(linear(x, self.first.weight, self.first.bias))
        return self.head(linear(x, self.second.weight, self.second.bias))


MODELS = {
    "mlp": Mlp,
    "norm": Norm,
    "embedding": Embedding,
    "sparse_embedding": SparseEmbedding,
    "branches": Branches,
    "reused": Reused,
    "checkpointed": Checkpointed,
    "tied": Tied,
}
