//! What the card keeps of its kernels' messages and bindings.

use std::collections::VecDeque;

use super::call::StatusWord;
use super::message::Posted;
use crate::buffer::Buffer;

/// The card's part of kernels.
#[derive(Debug)]
pub(crate) struct KernelState {
    /// Posted, and not yet handed to its queue pair.
    pub(crate) posted: VecDeque<Posted>,
    /// Posted and not yet acknowledged, those of `posted` included.
    pub(crate) in_flight: usize,
    /// Buffers of messages that have PSNs.
    pub(crate) buffers: Buffers,
    /// Buffers for status words.
    pub(crate) words: Vec<Buffer>,
    /// Bindings there are: none is the usual case, and costs nothing.
    pub(crate) taps: u32,
    /// What a receive kernel wants written instead.
    pub(crate) replaced: Vec<u8>,
    /// Buffers to be used again.
    pub(crate) returned: Vec<Buffer>,
}

impl KernelState {
    pub(crate) fn new() -> KernelState {
        KernelState {
            posted: VecDeque::new(),
            in_flight: 0,
            buffers: Buffers::default(),
            words: Vec::new(),
            taps: 0,
            replaced: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// A buffer with a status word in it.
    pub(crate) fn word(&mut self, word: &StatusWord) -> Buffer {
        let bytes = word.to_bytes();
        // One that a batch still refers to is left to that batch.
        let mut kept = self.words.pop().unwrap_or_default();
        match Buffer::get_mut(&mut kept) {
            Some(old) => {
                old.clear();
                old.extend_from_slice(&bytes);
                kept
            }
            None => Buffer::new(bytes.to_vec()),
        }
    }
}

/// Buffers by number, so that what refers to one stays small.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    slots: Vec<Option<Buffer>>,
    free: Vec<u32>,
}

impl Buffers {
    pub(crate) fn keep(&mut self, buffer: Buffer) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(buffer);
        at
    }

    pub(crate) fn get(&self, at: u32) -> Option<&Buffer> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub(crate) fn release(&mut self, at: u32) -> Option<Buffer> {
        let buffer = self.slots.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(buffer)
    }
}
