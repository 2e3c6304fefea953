//! Linking: gives a program's places their addresses, and writes its requests as elements.

use remora_nic::queue::{MAX_SGE, SendFlags};
use thiserror::Error;

use super::element::{Field, Label, QueueId, sge};
use super::place::{Base, ID_MASK, Place, Word};
use super::program::{Program, Relocation};
use super::request::Count;
use super::verb::Verb;

/// The inline flag: the element holds its data itself.
const INLINE: u16 = SendFlags::INLINE.bits();

/// A registered region; `key` is its local and its remote key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegionAt {
    /// Address of the first byte.
    pub addr: u64,
    /// Its key.
    pub key: u32,
}

/// A queue of a linked program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueAt {
    /// The number of its queue pair.
    pub qpn: u32,
    /// The completion queue that counts its completions.
    pub cq: u32,
    /// Its ring in memory.
    pub ring: RegionAt,
}

/// The addresses, keys and queue pair numbers of a linked program.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The queues, by [`QueueId`].
    pub queues: Vec<QueueAt>,
    /// The region of the data.
    pub data: RegionAt,
    /// The regions of the imports, by index of [`Base::Import`].
    pub imports: Vec<RegionAt>,
}

/// The bytes of a linked program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Image {
    /// By queue: its ring's bytes, slot by slot.
    pub queues: Vec<Vec<u8>>,
    /// The bytes of the data.
    pub data: Vec<u8>,
    /// By queue: the elements that may run when the program starts.
    pub enabled: Vec<u32>,
}

/// Why a program cannot be linked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LinkError {
    /// A request was named but never put into a queue.
    #[error("the request {0} is named but stands in no queue: put it into one")]
    Unplaced(String),
    /// The program has two receive queues, or two reply queues.
    #[error("a program has at most one receive queue and one reply queue")]
    Clients,
    /// A request has more local pieces than an element holds.
    #[error("the request {0} has {1} local pieces: an element holds 16")]
    Pieces(String, usize),
    /// The layout has another number of queues or imports than the program.
    #[error("the layout has {0}, but the program has {1}")]
    Layout(String, String),
}

impl Program {
    /// Gives all places their addresses, and returns the program's bytes.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn link(&self, layout: &Layout) -> Result<Image, LinkError> {
        let has = (layout.queues.len(), layout.imports.len());
        let wants = (self.queues.len(), self.imports.len());
        if has != wants {
            let count = |(queues, imports)| format!("{queues} queues and {imports} imports");
            return Err(LinkError::Layout(count(has), count(wants)));
        }
        if let Some(entry) =
            self.entries.iter().find(|entry| entry.at.is_none() && !entry.forgotten)
        {
            return Err(LinkError::Unplaced(entry.name.clone()));
        }
        let mut data = self.data.clone();
        data.resize(self.data_len(), 0);
        for &Relocation { offset, value } in &self.relocations {
            let value = value.resolve(|place| self.address(layout, place));
            data[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let mut image = Image { data, ..Image::default() };
        for id in (0..self.queues.len()).map(QueueId) {
            image.queues.push(self.ring(layout, id)?);
            image.enabled.push(self.enabled(id));
        }
        Ok(image)
    }

    fn ring(&self, layout: &Layout, id: QueueId) -> Result<Vec<u8>, LinkError> {
        let (queue, stride) = (&self.queues[id.0], self.stride(id) as usize);
        let mut ring = vec![0; queue.slots.len() * stride];
        for (&label, slot) in queue.slots.iter().zip(ring.chunks_exact_mut(stride)) {
            self.encode(layout, label, slot)?;
        }
        Ok(ring)
    }

    /// The address of a place in this layout.
    pub fn address(&self, layout: &Layout, place: Place) -> u64 {
        let base = match place.base {
            Base::Data => layout.data.addr,
            Base::Import(import) => layout.imports[import].addr,
            Base::Request(label) => {
                let at = self.entries[label.0].at;
                debug_assert!(at.is_some(), "{} is named, and in no queue", self.title(label));
                let (queue, index) = at.unwrap_or((QueueId(0), 0));
                let slot = u64::from(index) * u64::from(self.stride(queue));
                layout.queues[queue.0].ring.addr + slot
            }
        };
        base.wrapping_add(place.offset)
    }

    fn key(&self, layout: &Layout, place: Place) -> u32 {
        match place.base {
            Base::Data => layout.data.key,
            Base::Import(import) => layout.imports[import].key,
            Base::Request(label) => {
                let (queue, _) = self.entries[label.0].at.unwrap_or((QueueId(0), 0));
                layout.queues[queue.0].ring.key
            }
        }
    }

    fn encode(&self, layout: &Layout, label: Label, slot: &mut [u8]) -> Result<(), LinkError> {
        let request = self.request(label);
        let mut put = |at: u64, bytes: &[u8]| {
            slot[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        };
        let word = |word: Word| word.resolve(|place| self.address(layout, place)).to_le_bytes();
        let pieces = request.local.len();
        if pieces > MAX_SGE {
            return Err(LinkError::Pieces(self.name(label).to_owned(), pieces));
        }
        let (mut remote, mut key) = (0, 0);
        if let Some(place) = request.remote {
            (remote, key) = (self.address(layout, place), self.key(layout, place));
        }
        if let Some((queue, count)) = request.order {
            let at = layout.queues[queue.0];
            key = if request.verb == Verb::Wait { at.cq } else { at.qpn };
            remote = self.count(label, queue, count);
        }
        put(0, &word(Word::Head(request.held(), request.id & ID_MASK)));
        put(Field::Flags.span().0, &u16::from(request.signaled).to_le_bytes());
        put(11, &[pieces as u8]);
        put(Field::Key.span().0, &key.to_le_bytes());
        put(Field::Remote.span().0, &remote.to_le_bytes());
        put(Field::Operand.span().0, &word(request.operand));
        put(Field::WrId.span().0, &(label.0 as u64).to_le_bytes());
        if let Some((constant, len)) = request.constant {
            put(Field::Flags.span().0, &(u16::from(request.signaled) | INLINE).to_le_bytes());
            put(Field::Operand.span().0 + 4, &len.to_le_bytes());
            put(Field::Addr(0).span().0, &word(constant));
        }
        if request.verb == Verb::CompareSwap {
            put(Field::Compare.span().0, &word(request.compare));
        }
        for (i, piece) in request.local.iter().enumerate() {
            let at = sge(i as u8);
            put(at, &self.address(layout, piece.at).to_le_bytes());
            put(at + 8, &piece.len.to_le_bytes());
            put(at + 12, &self.key(layout, piece.at).to_le_bytes());
        }
        Ok(())
    }

    /// The count in the WAIT or ENABLE of `queue` that is at `label`.
    fn count(&self, label: Label, queue: QueueId, count: Count) -> u64 {
        let waits = self.request(label).verb == Verb::Wait;
        match count {
            Count::Number(number) => number,
            Count::Through(label) => match self.position(label) {
                Some((queue, index)) if waits => self.completions(queue, index),
                Some((_, index)) => u64::from(index) + 1,
                None => 0,
            },
            Count::Gate => {
                let from = match self.position(label) {
                    Some((own, index)) if own == queue => index + 1,
                    _ => 0,
                };
                let end = self.queues[queue.0].slots.len() as u32;
                u64::from(self.next_gate(queue, from).unwrap_or(end))
            }
        }
    }
}
