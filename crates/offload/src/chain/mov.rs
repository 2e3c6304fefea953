//! `mov` in the addressing modes of RedN's Table 7, for loads and for stores.
//!
//! A register is an 8-byte word in memory. The key of a pointer's region is in the element that
//! follows the pointer: a chain reaches only memory for which its elements hold keys.

use super::construct::Writer;
use super::element::{Field, Label};
use super::place::{Place, Span, Word};
use super::request::Request;
use super::verb::Verb;

/// A memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The register that holds the address.
    pub register: Place,
    /// A register whose value is added to the address.
    pub index: Option<Place>,
    /// Any place in the region that the address lies in; its key is used.
    pub memory: Place,
}

impl Writer<'_> {
    /// `mov dst, value`: stores a constant in as many bytes as `to` has, at most 24.
    pub fn mov_constant(&mut self, to: Span, value: Word) {
        self.construct("mov immediate", |w| w.push(Request::write_inline(value, to.len, to.at)));
    }

    /// `mov dst, src`: copies memory.
    pub fn mov(&mut self, to: Place, from: Span) {
        self.construct("mov register", |w| w.copy(from, to));
    }

    /// `mov dst, [register]` or `mov dst, [register + index]`.
    pub fn load(&mut self, to: Span, from: Pointer) {
        self.construct(from.mode(), |w| {
            let copy = w.program().label("");
            w.aim(copy.field(Field::Addr(0)), from);
            w.put(copy, Request::write(&[from.memory.span(to.len)], to.at));
        });
    }

    /// `mov [register], src` or `mov [register + index], src`.
    pub fn store(&mut self, to: Pointer, from: Span) {
        self.construct(to.mode(), |w| {
            let copy = w.program().label("");
            w.aim(copy.field(Field::Remote), to);
            w.put(copy, Request::write(&[from], to.memory));
        });
    }

    /// Puts the pointer's address into the field of an element that is appended next.
    fn aim(&mut self, field: Span, pointer: Pointer) {
        let add: Option<Label> = pointer.index.map(|index| {
            let add = self.program().label("");
            self.copy(index.span(8), add.field(Field::Operand).at);
            add
        });
        self.copy(pointer.register.span(8), field.at);
        self.barrier();
        if let Some(add) = add {
            self.put(add, Request::calc(Verb::Add, field.at, Word::Number(0)));
            self.barrier();
        }
    }
}

impl Pointer {
    fn mode(&self) -> &'static str {
        if self.index.is_some() { "mov indexed" } else { "mov indirect" }
    }
}
