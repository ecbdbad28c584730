"""A convolutional GAN: two models, two optimizers, three losses."""

import argparse

import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O1")
opt = parser.parse_args()
torch.manual_seed(1)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(4, 4, 2, 1, 0, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.ConvTranspose2d(4, 1, 2, 2, 0, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 4, 2, 2, 0, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(4, 1, 2, 1, 0, bias=False),
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


netG, netD = Generator(), Discriminator()
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.03, betas=(0.5, 0.999), eps=1e-4)
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999), eps=1e-4)
[netD, netG], [optimizerD, optimizerG] = amp.initialize(
    [netD, netG], [optimizerD, optimizerG], opt_level=opt.opt_level, num_losses=3
)
for i in range(20):
    netD.zero_grad()
    real = torch.ones(8, 1, 4, 4) + 0.1 * torch.randn(8, 1, 4, 4)
    errD_real = criterion(netD(real), torch.ones(8))
    with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
        errD_real_scaled.backward()
    fake = netG(torch.randn(8, 4, 1, 1))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(8))
    with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
        errD_fake_scaled.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(8))
    with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
        errG_scaled.backward()
    optimizerG.step()
    print("loss", (errD_real + errD_fake).item(), "generator", errG.item())
print("weights", netD.main[0].weight.dtype, "batchnorm", netG.main[1].weight.dtype)
print("scales", [scaler.loss_scale() for scaler in amp._amp_state.loss_scalers])
