//! Which receive takes which send.
//!
//! Receives that name their source and tag take such sends in order. The others take theirs as the
//! operations go on, without times: one that is ready takes a send that is, the first by source and
//! tag, or waits for the next that fits. So none takes a send that depends on it, if it can take
//! another one.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// What an operation has to do with messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Send {
        from: u32,
        to: u32,
        tag: u32,
    },
    /// `None`: from any source, with any tag.
    Recv {
        at: u32,
        from: Option<u32>,
        tag: Option<u32>,
    },
    Neither,
}

impl End {
    /// Is it a receive that leaves its source or tag open?
    fn is_open(self) -> bool {
        matches!(self, End::Recv { from, tag, .. } if from.is_none() || tag.is_none())
    }
}

/// An operation that is left without another end, by its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unpaired {
    Recv(u32),
    Send(u32),
}

/// By receive: the send that it takes. `depends` says for each operation which others come before
/// it; a receive comes behind its send, too. What waits for itself in spite of that is paired all
/// the same: [`order`](super::order::order) finds it.
///
/// # Errors
/// A receive without a send, or a send without a receive.
pub(super) fn pair(ends: &[End], depends: &[Vec<u32>]) -> Result<BTreeMap<u32, u32>, Unpaired> {
    let mut sends: BTreeMap<u32, Sends> = BTreeMap::new();
    for (i, end) in (0u32..).zip(ends) {
        if let End::Send { from, to, tag } = *end {
            sends.entry(to).or_default().add((from, tag), i);
        }
    }
    let mut pairs = BTreeMap::new();
    let is_named = |end: &End| matches!(end, End::Recv { .. }) && !end.is_open();
    take_all(&mut pairs, &mut sends, ends, is_named)?;
    if ends.iter().any(|end| end.is_open()) {
        let free = sends.values().flat_map(|sends| sends.lines.values()).flatten().copied();
        let mut pass = Pass::new((ends, depends), free.collect(), pairs);
        pass.run();
        (pairs, sends) = pass.finish();
        // What these take depends on them.
        take_all(&mut pairs, &mut sends, ends, |end| end.is_open())?;
    }
    let left = sends.values().flat_map(|sends| sends.lines.values()).flatten().min();
    left.map_or(Ok(pairs), |send| Err(Unpaired::Send(*send)))
}

/// Has receives take sends, in order, if they have none.
fn take_all(
    pairs: &mut BTreeMap<u32, u32>,
    sends: &mut BTreeMap<u32, Sends>,
    ends: &[End],
    which: impl Fn(&End) -> bool,
) -> Result<(), Unpaired> {
    for (i, end) in (0u32..).zip(ends) {
        if let End::Recv { at, from, tag } = *end
            && which(end)
            && !pairs.contains_key(&i)
        {
            let send = sends.get_mut(&at).and_then(|sends| sends.take(from, tag));
            pairs.insert(i, send.ok_or(Unpaired::Recv(i))?);
        }
    }
    Ok(())
}

/// The operations as they go on.
struct Pass<'a> {
    ends: &'a [End],
    /// The sends that no receive has taken which names its source and tag.
    free: BTreeSet<u32>,
    /// By operation: how many others it still waits for, and which wait for it.
    missing: Vec<u32>,
    behind: Vec<Vec<u32>>,
    /// What is ready: open receives behind all others, so that they find all sends that do not
    /// depend on them.
    ready: BinaryHeap<Reverse<(bool, u32)>>,
    /// By rank: free sends that are ready.
    sends: BTreeMap<u32, Sends>,
    /// By rank, source and tag: open receives that are ready and have found no send.
    waiting: BTreeMap<(u32, Option<u32>, Option<u32>), VecDeque<u32>>,
    pairs: BTreeMap<u32, u32>,
}

impl<'a> Pass<'a> {
    fn new(
        (ends, depends): (&'a [End], &[Vec<u32>]),
        free: BTreeSet<u32>,
        pairs: BTreeMap<u32, u32>,
    ) -> Pass<'a> {
        let (mut missing, mut behind) = (vec![0; ends.len()], vec![Vec::new(); ends.len()]);
        let listed = (0u32..).zip(depends).flat_map(|(i, on)| on.iter().map(move |on| (i, *on)));
        for (i, on) in listed.chain(pairs.iter().map(|(recv, send)| (*recv, *send))) {
            missing[i as usize] += 1;
            behind[on as usize].push(i);
        }
        let (ready, sends, waiting) = (BinaryHeap::new(), BTreeMap::new(), BTreeMap::new());
        let mut pass = Pass { ends, free, missing, behind, ready, sends, waiting, pairs };
        (0..ends.len() as u32).for_each(|i| pass.note(i));
        pass
    }

    /// Notes an operation that may be ready.
    fn note(&mut self, i: u32) {
        if self.missing[i as usize] == 0 {
            self.ready.push(Reverse((self.ends[i as usize].is_open(), i)));
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((_, i))) = self.ready.pop() {
            match self.ends[i as usize] {
                End::Recv { at, from, tag } if !self.pairs.contains_key(&i) => {
                    match self.sends.get_mut(&at).and_then(|sends| sends.take(from, tag)) {
                        Some(send) => self.join(i, send),
                        None => self.waiting.entry((at, from, tag)).or_default().push_back(i),
                    }
                }
                End::Send { from, to, tag } if self.free.contains(&i) => {
                    self.done(i);
                    match self.first_waiting(from, to, tag) {
                        Some(recv) => self.join(recv, i),
                        None => self.sends.entry(to).or_default().add((from, tag), i),
                    }
                }
                _ => self.done(i),
            }
        }
    }

    /// Takes the first receive that waits for such a send.
    fn first_waiting(&mut self, from: u32, to: u32, tag: u32) -> Option<u32> {
        let kinds = [(to, None, None), (to, Some(from), None), (to, None, Some(tag))];
        let first = |kind: &(u32, Option<u32>, Option<u32>)| {
            self.waiting.get(kind).and_then(|line| line.front()).map(|recv| (*recv, *kind))
        };
        let (_, kind) = kinds.iter().filter_map(first).min()?;
        self.waiting.get_mut(&kind)?.pop_front()
    }

    fn join(&mut self, recv: u32, send: u32) {
        self.pairs.insert(recv, send);
        self.done(recv);
    }

    fn done(&mut self, i: u32) {
        for other in core::mem::take(&mut self.behind[i as usize]) {
            self.missing[other as usize] -= 1;
            self.note(other);
        }
    }

    /// The pairs, and, by rank, all sends that no receive has taken.
    fn finish(mut self) -> (BTreeMap<u32, u32>, BTreeMap<u32, Sends>) {
        for i in self.free {
            if let End::Send { from, to, tag } = self.ends[i as usize]
                && self.missing[i as usize] > 0
            {
                self.sends.entry(to).or_default().add((from, tag), i);
            }
        }
        (self.pairs, self.sends)
    }
}

/// The sends to a rank that no receive has taken.
#[derive(Default)]
struct Sends {
    /// By source and tag: the sends, in order; none of the lines is empty.
    lines: BTreeMap<(u32, u32), VecDeque<u32>>,
    /// The tags, and the sources of each: a receive from any source finds its line by them.
    tags: BTreeSet<(u32, u32)>,
}

impl Sends {
    fn add(&mut self, (src, tag): (u32, u32), send: u32) {
        self.lines.entry((src, tag)).or_default().push_back(send);
        self.tags.insert((tag, src));
    }

    /// Takes the first send of the first line that fits: in order by source, then by tag.
    fn take(&mut self, from: Option<u32>, tag: Option<u32>) -> Option<u32> {
        let key = match (from, tag) {
            (None, None) => *self.lines.keys().next()?,
            (Some(from), None) => *self.lines.range((from, 0)..=(from, u32::MAX)).next()?.0,
            (None, Some(tag)) => (self.tags.range((tag, 0)..=(tag, u32::MAX)).next()?.1, tag),
            (Some(from), Some(tag)) => (from, tag),
        };
        let line = self.lines.get_mut(&key)?;
        let send = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&key);
            self.tags.remove(&(key.1, key.0));
        }
        send
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn send(from: u32, to: u32, tag: u32) -> End {
        End::Send { from, to, tag }
    }

    const fn recv(at: u32, from: Option<u32>, tag: Option<u32>) -> End {
        End::Recv { at, from, tag }
    }

    fn pairs(ends: &[End], depends: &[(usize, u32)]) -> Result<Vec<(u32, u32)>, Unpaired> {
        let mut all = vec![Vec::new(); ends.len()];
        depends.iter().for_each(|(i, on)| all[*i].push(*on));
        pair(ends, &all).map(|pairs| pairs.into_iter().collect())
    }

    /// The send of the lowest source depends on the first receive, so that takes the other one.
    #[test]
    fn a_receive_takes_no_send_that_depends_on_it() {
        let ends = [recv(0, None, Some(1)), send(1, 0, 1), send(2, 0, 1), recv(0, None, Some(1))];
        assert_eq!(pairs(&ends, &[]), Ok(vec![(0, 1), (3, 2)]));
        assert_eq!(pairs(&ends, &[(1, 0), (3, 0)]), Ok(vec![(0, 2), (3, 1)]));
        // By way of a receive that another rank names, and of one that waits.
        let ends = [
            recv(0, None, None),
            send(0, 1, 5),
            recv(1, Some(0), Some(5)),
            send(1, 0, 6),
            recv(2, None, None),
            send(0, 2, 7),
            send(2, 0, 8),
            recv(0, None, None),
            send(3, 0, 9),
            recv(0, Some(2), None),
        ];
        let depends = [(1, 0), (3, 2), (5, 7), (6, 4), (7, 1)];
        let found = vec![(0, 8), (2, 1), (4, 5), (7, 3), (9, 6)];
        assert_eq!(pairs(&ends, &depends), Ok(found));
    }

    #[test]
    fn what_is_left_is_told() {
        let (any, one) = (recv(0, None, None), send(1, 0, 1));
        assert_eq!(pairs(&[any, one, any], &[]), Err(Unpaired::Recv(2)));
        assert_eq!(pairs(&[one, any, one, one], &[]), Err(Unpaired::Send(2)));
        assert_eq!(pairs(&[one, recv(0, Some(1), Some(2)), any], &[]), Err(Unpaired::Recv(1)));
        // Another one tells of the circle.
        assert_eq!(pairs(&[any, one], &[(1, 0)]), Ok(vec![(0, 1)]));
        assert_eq!(pairs(&[any, one], &[(0, 0), (1, 1)]), Ok(vec![(0, 1)]));
    }

    /// The many would take minutes if each looked through the others.
    #[test]
    fn a_chain_of_receives_from_anywhere_is_quick() {
        let n = 40_000u32;
        let ends: Vec<End> =
            (0..n).map(|i| recv(0, None, Some(i))).chain((0..n).map(|i| send(1, 0, i))).collect();
        // Each send but the first waits for the receive before.
        let depends: Vec<(usize, u32)> = (1..n).map(|i| ((n + i) as usize, i - 1)).collect();
        let found = pairs(&ends, &depends).unwrap();
        assert!(found.iter().all(|(recv, send)| *send == n + recv));
    }
}
