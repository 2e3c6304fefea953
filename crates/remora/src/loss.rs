//! Loss on purpose: a card that loses packets as a bad network would, so that users can test their
//! programs.

use std::env;

use thiserror::Error;

/// The environment variable with the share of packets that each card loses, in per cent, and after
/// a comma the seed that says which (without it, others each time).
pub const LOSS_VARIABLE: &str = "REMORA_LOSS";

/// A loss that cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{LOSS_VARIABLE} is `{0}`: give the packets to lose in per cent, 0 to 100, and a seed after a \
     comma if the same ones are to be lost each time, as in {LOSS_VARIABLE}=0.5,42"
)]
pub struct BadLoss(pub String);

/// Which packets are lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loss {
    /// Of 2^32 packets, as many are lost; 0 for none.
    share: u64,
    state: u64,
}

impl Loss {
    /// As [`LOSS_VARIABLE`] says; `seed` is for a loss without one.
    ///
    /// # Errors
    /// The variable cannot be understood.
    pub(crate) fn from_environment(seed: u64) -> Result<Loss, BadLoss> {
        match env::var(LOSS_VARIABLE) {
            Ok(text) if !text.is_empty() => Loss::parse(&text, seed),
            _ => Ok(Loss::default()),
        }
    }

    fn parse(text: &str, seed: u64) -> Result<Loss, BadLoss> {
        let bad = || BadLoss(text.to_owned());
        let (percent, seed) = match text.split_once(',') {
            Some((percent, seed)) => (percent, seed.trim().parse().map_err(|_| bad())?),
            None => (text, seed),
        };
        let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(bad());
        }
        Ok(Loss { share: (percent / 100.0 * (1u64 << 32) as f64) as u64, state: seed })
    }

    /// Is any packet lost?
    pub(crate) fn is_on(&self) -> bool {
        self.share != 0
    }

    /// Is the next packet lost?
    #[inline]
    pub(crate) fn takes(&mut self) -> bool {
        self.share != 0 && self.draw() < self.share
    }

    /// A number of 32 bits (SplitMix64, whose every seed is good).
    #[inline(never)]
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_lost_as_were_asked_for() {
        let lost = |text: &str| {
            let mut loss = Loss::parse(text, 1).unwrap();
            (0..10_000).filter(|_| loss.takes()).count()
        };
        assert_eq!((lost("0"), lost("100")), (0, 10_000));
        assert_eq!(lost("2.5,7"), lost(" 2.5 , 7"));
        assert!((200..300).contains(&lost("2.5,7")) && lost("2.5,7") != lost("2.5,8"));
        let mut none = Loss::default();
        assert!(!(0..1000).any(|_| none.takes()));
    }

    #[test]
    fn what_is_no_loss_is_explained() {
        for text in ["", "x", "-1", "101", "NaN", "1,", "1,x", ",1"] {
            let error = Loss::parse(text, 0).unwrap_err();
            assert!(error.to_string().contains("0 to 100"), "{text}");
        }
    }
}
