# SPDX-License-Identifier: Apache-2.0
# Handwritten digits in 20 lines: python3 digits.py [FILE], by default digits.csv of the folder examples/data.
import os, sys

import ctrt
from ctrt import nn

data = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples", "data", "digits.csv")
table = ctrt.tensor([[int(n) for n in line.split(",")] for line in open(sys.argv[1] if len(sys.argv) > 1 else data)])
ctrt.manual_seed(1)
table = table[ctrt.randperm(len(table))]
images, labels = table[:, :64].float() / 16, table[:, 64]
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
optimizer = ctrt.optim.AdamW(net, lr=2e-3)
for epoch in range(20):
    for rows in ctrt.randperm(1437).split(32):
        loss = nn.functional.cross_entropy(net(images[rows]), labels[rows], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with ctrt.no_grad():
    right = net.eval()(images[1437:]).argmax(1) == labels[1437:]
print("loss %.4f, %.2f %% of %d other images are right" % (loss, 100 * right.float().mean(), len(right)))
sys.exit(right.float().mean().item() < 0.95)
