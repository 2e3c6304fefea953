//! What a text says, before names are resolved.

use core::ops::Range;

/// A range of bytes in the text.
pub(super) type At = Range<usize>;

#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) at: At,
}

/// `name.field + offset : length`
#[derive(Clone, Debug)]
pub(super) struct PlaceText {
    pub(super) name: Name,
    pub(super) field: Option<Name>,
    pub(super) offset: u64,
    pub(super) len: Option<u64>,
    pub(super) at: At,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(u64, At),
    Address(PlaceText),
    /// `verb:id`, as in an element's first word.
    Head(Name, u64),
    Text(String, At),
    Zero(u64, At),
    /// The bytes in memory at a place.
    Place(PlaceText),
}

#[derive(Clone, Debug)]
pub(super) struct PointerText {
    pub(super) register: PlaceText,
    pub(super) index: Option<PlaceText>,
}

#[derive(Clone, Debug)]
pub(super) enum MovSide {
    Value(Value),
    Pointer(PointerText),
}

#[derive(Clone, Debug)]
pub(super) struct ElementText {
    pub(super) label: Option<Name>,
    pub(super) off: bool,
    pub(super) verb: Name,
    /// The values before the arrow.
    pub(super) from: Vec<Value>,
    /// The value after `=>`.
    pub(super) becomes: Option<Value>,
    /// The places after `->`.
    pub(super) to: Vec<PlaceText>,
    /// The queue of a WAIT or ENABLE.
    pub(super) queue: Option<Name>,
    pub(super) count: Option<CountText>,
    pub(super) id: u64,
    pub(super) silent: bool,
}

#[derive(Clone, Debug)]
pub(super) enum CountText {
    Number(u64),
    Through(Name),
    Gate,
}

#[derive(Clone, Debug)]
pub(super) struct ConditionText {
    pub(super) left: Value,
    pub(super) relation: super::super::construct::Relation,
    pub(super) right: Value,
    pub(super) at: At,
}

#[derive(Clone, Debug)]
pub(super) enum Statement {
    Mov(MovSide, MovSide, At),
    /// A verb with a place and a second operand: `add x, 5`.
    Calc(Name, PlaceText, Value),
    If(ConditionText, Vec<Statement>, Vec<Statement>),
    While(ConditionText, Vec<Statement>, At),
    Loop(Vec<Statement>, At),
    Repeat(u64, Vec<Statement>, At),
    Break(At),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueKind {
    Loop,
    Reply,
    Receive,
}

#[derive(Clone, Debug)]
pub(super) enum Item {
    Data(Name, Vec<Value>),
    Queue(QueueText),
    /// `program`; true for `program doorbell`.
    Program(bool, Vec<Statement>, At),
    /// A message of the client.
    Request(Vec<Value>),
    Show(PlaceText),
}

#[derive(Clone, Debug)]
pub(super) struct QueueText {
    pub(super) name: Name,
    pub(super) kind: QueueKind,
    pub(super) managed: bool,
    /// Elements that may run at first. `None`: all, or up to the first gate.
    pub(super) start: Option<u64>,
    pub(super) elements: Vec<ElementText>,
}
