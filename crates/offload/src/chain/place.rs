//! Symbolic addresses and values: how a program names memory before it is linked.
//!
//! [`Program::link`](super::program::Program::link) turns them into addresses.

use super::element::{Field, Label, OPERAND_BITS};
use super::verb::Verb;

/// The start that an address counts from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base {
    /// The start of the program's data.
    Data,
    /// The slot of a work request.
    Request(Label),
    /// The start of memory that the program takes from outside, by its index in
    /// [`super::program::Program::imports`].
    Import(usize),
}

/// A symbolic address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The start that the address counts from.
    pub base: Base,
    /// Bytes from there.
    pub offset: u64,
}

impl Place {
    /// The place `bytes` bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Place {
        Place { base: self.base, offset: self.offset + bytes }
    }

    /// The piece of memory of `len` bytes that starts here.
    pub const fn span(self, len: u32) -> Span {
        Span { at: self, len }
    }
}

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Its first byte.
    pub at: Place,
    /// Its length in bytes.
    pub len: u32,
}

impl Span {
    /// The piece of `len` bytes that starts `offset` bytes into this one.
    #[must_use]
    pub const fn part(self, offset: u64, len: u32) -> Span {
        self.at.plus(offset).span(len)
    }

    /// The 8-byte word with index `i`.
    pub const fn word(self, i: u64) -> Span {
        self.part(8 * i, 8)
    }
}

/// A value of 8 bytes, which may be known only when the program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Word {
    /// The number itself.
    Number(u64),
    /// The address of a place.
    Address(Place),
    /// The first word of an element with this verb and this id.
    Head(Verb, u64),
}

impl Word {
    /// The value, with `address` as the addresses of places.
    pub(crate) fn resolve(self, address: impl FnOnce(Place) -> u64) -> u64 {
        match self {
            Word::Number(number) => number,
            Word::Address(place) => address(place),
            Word::Head(verb, id) => u64::from(verb.code()) | (id & ID_MASK) << 16,
        }
    }
}

/// The bits of an id that an element holds.
pub(crate) const ID_MASK: u64 = (1 << OPERAND_BITS) - 1;

impl Label {
    /// A field of this request's element.
    pub const fn field(self, field: Field) -> Span {
        let (offset, len) = field.span();
        Place { base: Base::Request(self), offset }.span(len)
    }
}
