//! The parts of a region that are free or in use.

use crate::dice::Dice;

/// The free parts of a region.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    /// Start and end of each free part, in order. No two parts touch.
    free: Vec<(u64, u64)>,
}

impl Spans {
    pub(crate) fn new(len: u64) -> Spans {
        Spans { free: vec![(0, len)] }
    }

    /// Takes `len` bytes anywhere. Parts that were freed last are used again soon, so that a stray
    /// write to them is noticed.
    pub(crate) fn take(&mut self, dice: &mut Dice, len: u64) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        let fitting: Vec<usize> =
            (0..self.free.len()).filter(|i| self.free[*i].1 - self.free[*i].0 >= len).collect();
        if fitting.is_empty() {
            return None;
        }
        let at = dice.pick(&fitting);
        let start = self.free[at].0;
        self.free[at].0 += len;
        if self.free[at].0 == self.free[at].1 {
            self.free.remove(at);
        }
        Some(start)
    }

    /// Frees these bytes.
    pub(crate) fn give_back(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let at = self.free.partition_point(|(s, _)| *s < start);
        self.free.insert(at, (start, start + len));
        if at + 1 < self.free.len() && self.free[at].1 == self.free[at + 1].0 {
            self.free[at].1 = self.free.remove(at + 1).1;
        }
        if at > 0 && self.free[at - 1].1 == self.free[at].0 {
            self.free[at - 1].1 = self.free.remove(at).1;
        }
    }
}

/// Cuts the `len` bytes from `start` on into at most `most` pieces, some of which may be empty.
pub(crate) fn cut(dice: &mut Dice, start: u64, len: u64, most: usize) -> Vec<(u64, u64)> {
    let count = dice.between(1..=most.max(1) as u64);
    let mut cuts: Vec<u64> = (1..count).map(|_| dice.below(len + 1)).collect();
    cuts.sort_unstable();
    let mut pieces = Vec::new();
    let mut at = 0;
    for end in cuts.into_iter().chain([len]) {
        pieces.push((start + at, end - at));
        at = end;
    }
    dice.shuffle(&mut pieces);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_join_again() {
        let mut dice = Dice::new(1);
        let mut spans = Spans::new(100);
        let taken: Vec<u64> = (0..10).map(|_| spans.take(&mut dice, 10).unwrap()).collect();
        assert_eq!(spans.take(&mut dice, 1), None);
        taken.iter().rev().for_each(|start| spans.give_back(*start, 10));
        assert_eq!(spans.take(&mut dice, 100), Some(0));
    }

    #[test]
    fn pieces_cover_what_was_cut() {
        let mut dice = Dice::new(2);
        for len in 0..50 {
            let pieces = cut(&mut dice, 7, len, 5);
            assert_eq!(pieces.iter().map(|p| p.1).sum::<u64>(), len);
        }
    }
}
