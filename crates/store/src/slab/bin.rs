//! The spans of one class of one tablespace.

use std::collections::BTreeSet;

use super::class::Class;

/// Spans are told apart by how full they are, in so many steps.
const STEPS: usize = 4;

/// Pages that are divided into blocks.
#[derive(Debug)]
pub(super) struct Span {
    /// Its first page.
    pub(super) first: u32,
    /// A bit for each block, set if it is in use.
    used: Box<[u64]>,
    count: u32,
    /// Whether no more blocks are taken from it, since its items are being moved.
    draining: bool,
}

impl Span {
    fn in_use(&self, class: &Class) -> Vec<u32> {
        let is_used = |block: &u32| self.used[*block as usize / 64] >> (block % 64) & 1 != 0;
        (0..class.blocks).filter(is_used).collect()
    }
}

/// Spans of one size. The fullest that are not full give blocks, so that others become empty.
#[derive(Debug, Default)]
pub(super) struct Bin {
    /// By number; the numbers of `None` are used again.
    spans: Vec<Option<Span>>,
    vacant: Vec<u32>,
    /// The span that gives blocks at present.
    current: Option<u32>,
    /// Others that can give, by how full they are.
    open: [BTreeSet<u32>; STEPS],
    /// Blocks in use.
    in_use: u64,
    /// Spans there are.
    count: u64,
}

impl Bin {
    /// A block: its span's first page, and its index there.
    pub(super) fn take(&mut self, class: &Class) -> Option<(u32, u32)> {
        let number = match self.current {
            Some(number) => number,
            None => self.open.iter_mut().rev().find_map(|step| step.pop_first())?,
        };
        let span = self.spans[number as usize].as_mut()?;
        let word = span.used.iter().position(|&word| word != u64::MAX)?;
        let bit = span.used[word].trailing_ones();
        span.used[word] |= 1 << bit;
        span.count += 1;
        self.current = (span.count < class.blocks).then_some(number);
        self.in_use += 1;
        Some((span.first, word as u32 * 64 + bit))
    }

    /// Adds a span; returns its number.
    pub(super) fn add(&mut self, first: u32, class: &Class) -> u32 {
        let mut used = vec![0; class.blocks.div_ceil(64) as usize].into_boxed_slice();
        if let Some(last) = used.last_mut()
            && !class.blocks.is_multiple_of(64)
        {
            // The bits of no block count as used.
            *last = u64::MAX << (class.blocks % 64);
        }
        let span = Some(Span { first, used, count: 0, draining: false });
        let number = match self.vacant.pop() {
            Some(number) => {
                self.spans[number as usize] = span;
                number
            }
            None => {
                self.spans.push(span);
                self.spans.len() as u32 - 1
            }
        };
        self.open[0].insert(number);
        self.count += 1;
        number
    }

    /// Takes a block back. `Ok(Some(page))` if its span, of that first page, has become empty and
    /// is the caller's now.
    ///
    /// # Errors
    /// There is no such block in use.
    pub(super) fn give(
        &mut self,
        (number, first): (u32, u32),
        block: u32,
        class: &Class,
    ) -> Result<Option<u32>, NoSuchBlock> {
        let span = self.spans.get_mut(number as usize).and_then(Option::as_mut);
        let span = span.filter(|span| span.first == first).ok_or(NoSuchBlock)?;
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if block >= class.blocks || span.used[word] & bit == 0 {
            return Err(NoSuchBlock);
        }
        span.used[word] &= !bit;
        let (before, after) = (step(span.count, class), step(span.count - 1, class));
        let was_full = span.count == class.blocks;
        span.count -= 1;
        self.in_use -= 1;
        if span.count == 0 && (self.current != Some(number) || span.draining) {
            self.open[before].remove(&number);
            self.current = self.current.filter(|&current| current != number);
            self.remove(number);
            return Ok(Some(first));
        }
        if self.current != Some(number) && !span.draining && (was_full || before != after) {
            self.open[before].remove(&number);
            self.open[after].insert(number);
        }
        Ok(None)
    }

    /// Chooses the emptiest span so that its items move elsewhere, if others have room for them:
    /// its number, first page, and blocks in use. It gives no more blocks. Unless that is `urgent`,
    /// only a span that is worth the work is chosen.
    pub(super) fn drain(&mut self, class: &Class, urgent: bool) -> Option<(u32, u32, Vec<u32>)> {
        let blocks = u64::from(class.blocks);
        let free = self.count * blocks - self.in_use;
        let (enough, steps) = if urgent {
            (blocks, STEPS)
        } else {
            (blocks + free_kept(self.count, class), STEPS / 2)
        };
        if free < enough {
            return None;
        }
        let number = self.open[..steps].iter().find_map(|step| step.first().copied())?;
        for step in &mut self.open {
            step.remove(&number);
        }
        let span = self.spans[number as usize].as_mut()?;
        span.draining = true;
        Some((number, span.first, span.in_use(class)))
    }

    /// The first page of one of the spans, chosen by `seed`, and its blocks in use.
    pub(super) fn some_in_use(&self, seed: u64, class: &Class) -> Option<(u32, Vec<u32>)> {
        let mut spans = self.spans.iter().flatten().filter(|span| span.count > 0);
        let count = spans.clone().count();
        let span = spans.nth(seed as usize % count.max(1))?;
        Some((span.first, span.in_use(class)))
    }

    /// Gives up the current span if it is empty: its first page, which is the caller's now.
    pub(super) fn give_up_empty(&mut self) -> Option<u32> {
        let number = self.current?;
        let first = self.spans[number as usize].as_ref().filter(|span| span.count == 0)?.first;
        self.current = None;
        self.remove(number);
        Some(first)
    }

    fn remove(&mut self, number: u32) {
        self.spans[number as usize] = None;
        self.vacant.push(number);
        self.count -= 1;
    }

    /// Lets a span give blocks again that could not be drained.
    pub(super) fn undrain(&mut self, number: u32, first: u32, class: &Class) {
        let span = self.spans.get_mut(number as usize).and_then(Option::as_mut);
        if let Some(span) = span.filter(|span| span.first == first && span.draining) {
            span.draining = false;
            if span.count < class.blocks {
                self.open[step(span.count, class)].insert(number);
            }
        }
    }

    /// Blocks in use, and blocks there are.
    pub(super) fn blocks(&self, class: &Class) -> (u64, u64) {
        (self.in_use, self.count * u64::from(class.blocks))
    }
}

/// Free blocks that are left as they are: an eighth.
fn free_kept(spans: u64, class: &Class) -> u64 {
    spans * u64::from(class.blocks) / 8
}

fn step(count: u32, class: &Class) -> usize {
    (count as usize * STEPS / class.blocks as usize).min(STEPS - 1)
}

/// There is no such block in use: what named it was damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoSuchBlock;
