//! An element's parts, and the names of elements and queues in a program.

use super::verb::Verb;

/// The 48 bits of an operand that a compare-and-swap can test beside an op-code (RedN §3.5).
pub const OPERAND_BITS: u32 = 48;

/// A part of an element, as labels name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// Op-code and id: the word that a compare-and-swap tests and changes.
    Head,
    /// The op-code.
    Opcode,
    /// The free 48 bits.
    Id,
    /// Flags.
    Flags,
    /// The remote address; of WAIT and ENABLE, the count.
    Remote,
    /// The key of the remote address; of WAIT and ENABLE, whom they mean.
    Key,
    /// The value to swap in, or the second operand of a calc verb.
    Operand,
    /// What comes back in the completion.
    WrId,
    /// The address of local entry `0..16`.
    Addr(u8),
    /// The bytes of local entry `0..16`.
    Len(u8),
    /// The value a compare-and-swap expects.
    Compare,
    /// The 48 bits of `Compare` that stand against an element's id.
    CompareId,
    /// The whole first 64 bytes.
    Element,
    /// Op-code to count: what makes a WAIT or ENABLE, in one piece.
    Order,
}

impl Field {
    /// First byte in the slot, and bytes.
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

    /// The field of a name, as the text form has it. `src` and `dst` depend on the verb, as in the
    /// paper's figures: the source of a READ is remote, that of a WRITE local.
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

/// Where entry `i` lies in a slot.
pub(crate) const fn sge(i: u8) -> u64 {
    if i == 0 { 40 } else { 64 + 16 * (i as u64 - 1) }
}

/// The index of a queue in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueId(pub(crate) usize);

impl QueueId {
    /// The queue at a place among [`super::program::Program::queues`].
    pub const fn from_index(index: usize) -> QueueId {
        QueueId(index)
    }

    /// Its place there.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A work request of a program, wherever it ends up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Label(pub(crate) usize);
