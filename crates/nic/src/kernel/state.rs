//! The card's state of its kernels' messages and bindings.

use std::collections::VecDeque;

use super::call::StatusWord;
use super::message::Posted;
use crate::buffer::Buffer;

/// The card's state of kernels.
#[derive(Debug)]
pub(crate) struct KernelState {
    /// Messages that are posted and not yet handed to their queue pairs.
    pub(crate) posted: VecDeque<Posted>,
    /// How many messages are posted and not yet acknowledged, those in `posted` included.
    pub(crate) in_flight: usize,
    /// Buffers of messages that have PSNs.
    pub(crate) buffers: Buffers,
    /// Buffers for status words.
    pub(crate) words: Vec<Buffer>,
    /// How many bindings there are. Usually there are none, and packets pay nothing for them.
    pub(crate) taps: u32,
    /// Room for the bytes that a bound kernel wants written instead.
    pub(crate) replaced: Vec<u8>,
    /// Buffers that can be used again.
    pub(crate) returned: Vec<Buffer>,
    /// Kernels wait for turns of other clients' queue pairs.
    pub(crate) held: bool,
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
            held: false,
        }
    }

    /// A buffer with a status word in it.
    pub(crate) fn word(&mut self, word: &StatusWord) -> Buffer {
        let bytes = word.to_bytes();
        // A buffer that a batch still refers to is not used again.
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

/// Buffers by number, since a number is smaller than a reference.
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
