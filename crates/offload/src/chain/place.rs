//! Symbolic addresses and values: what is known before a program is linked.

use super::element::{Field, Label, OPERAND_BITS};
use super::verb::Verb;

/// What an address counts from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base {
    /// The program's data.
    Data,
    /// The slot of a work request.
    Request(Label),
    /// Memory that is not the program's own, by its place among
    /// [`super::program::Program::imports`].
    Import(usize),
}

/// An address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// What it counts from.
    pub base: Base,
    /// Bytes from there.
    pub offset: u64,
}

impl Place {
    /// `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Place {
        Place { base: self.base, offset: self.offset + bytes }
    }

    /// `len` bytes from here on.
    pub const fn span(self, len: u32) -> Span {
        Span { at: self, len }
    }
}

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Its first byte.
    pub at: Place,
    /// Bytes.
    pub len: u32,
}

impl Span {
    /// `len` bytes, `offset` bytes into it.
    #[must_use]
    pub const fn part(self, offset: u64, len: u32) -> Span {
        self.at.plus(offset).span(len)
    }

    /// Its word `i`, of 8 bytes.
    pub const fn word(self, i: u64) -> Span {
        self.part(8 * i, 8)
    }
}

/// A value of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Word {
    /// A number.
    Number(u64),
    /// An address, known when the program is linked.
    Address(Place),
    /// What a request's first word is with this verb and this id.
    Head(Verb, u64),
}

impl Word {
    /// The value, once addresses are known.
    pub(crate) fn resolve(self, address: impl FnOnce(Place) -> u64) -> u64 {
        match self {
            Word::Number(number) => number,
            Word::Address(place) => address(place),
            Word::Head(verb, id) => u64::from(verb.code()) | (id & ID_MASK) << 16,
        }
    }
}

/// The bits of an id.
pub(crate) const ID_MASK: u64 = (1 << OPERAND_BITS) - 1;

impl Label {
    /// A field of this request's element.
    pub const fn field(self, field: Field) -> Span {
        let (offset, len) = field.span();
        Place { base: Base::Request(self), offset }.span(len)
    }
}
