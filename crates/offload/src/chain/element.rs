//! The fields of an element, and the names of elements and queues in a program.

use super::verb::Verb;

/// Bits of an operand that a compare-and-swap can test beside an op-code (RedN §3.5).
pub const OPERAND_BITS: u32 = 48;

/// A field of an element, as programs name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// Op-code and id: the word that a compare-and-swap tests and changes.
    Head,
    /// The op-code.
    Opcode,
    /// The 48 bits beside the op-code, which programs may use.
    Id,
    /// Flags.
    Flags,
    /// The remote address. In a WAIT or ENABLE, the count.
    Remote,
    /// The key of the remote address. In a WAIT or ENABLE, the completion queue or queue pair.
    Key,
    /// The value that a compare-and-swap stores, or the second operand of a calc verb.
    Operand,
    /// The `wr_id` of the completion.
    WrId,
    /// The address of local entry `0..16`.
    Addr(u8),
    /// The length of local entry `0..16`, in bytes.
    Len(u8),
    /// The value a compare-and-swap expects.
    Compare,
    /// The 48 bits of `Compare` that are compared with an element's id.
    CompareId,
    /// The first 64 bytes.
    Element,
    /// From the op-code to the count: everything that makes up a WAIT or ENABLE, in one piece.
    Order,
}

impl Field {
    /// The offset of the field's first byte in the slot, and the field's length in bytes.
    pub const fn span(self) -> (u64, u32) {
        match self {
            Field::Head => (0, 8),
            Field::Opcode => (0, 2),
            Field::Id => (2, 6),
            Field::Flags => (8, 2),
            Field::Key => (12, 4),
            Field::Remote => (16, 8),
            Field::Operand => (24, 8),
            Field::WrId => (32, 8),
            Field::Addr(i) => (sge(i), 8),
            Field::Len(i) => (sge(i) + 8, 4),
            Field::Compare => (56, 8),
            Field::CompareId => (58, 6),
            Field::Element => (0, 64),
            Field::Order => (0, 24),
        }
    }

    /// The field that the text form calls `name`. `src` and `dst` depend on the verb: the source of
    /// a READ is remote, that of a WRITE local, as in RedN's figures.
    pub fn named(name: &str, verb: Verb) -> Option<Field> {
        Some(match name {
            "head" => Field::Head,
            "opcode" => Field::Opcode,
            "id" => Field::Id,
            "flags" => Field::Flags,
            "remote" | "count" => Field::Remote,
            "key" => Field::Key,
            "operand" | "new" => Field::Operand,
            "wr_id" => Field::WrId,
            "addr" => Field::Addr(0),
            "len" => Field::Len(0),
            "src" if verb == Verb::Read => Field::Remote,
            "dst" if verb == Verb::Read => Field::Addr(0),
            "src" => Field::Addr(0),
            "dst" => Field::Remote,
            "compare" => Field::Compare,
            "old" => Field::CompareId,
            "element" => Field::Element,
            _ => return None,
        })
    }
}

/// The offset of local entry `i` in a slot.
pub(crate) const fn sge(i: u8) -> u64 {
    if i == 0 { 40 } else { 64 + 16 * (i as u64 - 1) }
}

/// The index of a queue in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueId(pub(crate) usize);

impl QueueId {
    /// The queue at `index` in [`super::program::Program::queues`].
    pub const fn from_index(index: usize) -> QueueId {
        QueueId(index)
    }

    /// The queue's index in [`super::program::Program::queues`].
    pub const fn index(self) -> usize {
        self.0
    }
}

/// The name of a work request, independent of the queue that it is put into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Label(pub(crate) usize);
