//! The verbs of work requests, with their op-codes and names.

use remora_nic::queue::Opcode;

/// What a work request does: the op-codes of the card that chains are made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Verb {
    /// SEND of the local bytes to the peer.
    Send = Opcode::Send as u16,
    /// WRITE of the local bytes to `remote`.
    Write = Opcode::Write as u16,
    /// WRITE that also takes a receive element of the peer.
    WriteImm = Opcode::WriteImm as u16,
    /// READ of `remote` into the local bytes.
    Read = Opcode::Read as u16,
    /// The word at `remote` becomes `operand` if it equals `compare`.
    CompareSwap = Opcode::CompareSwap as u16,
    /// Adds `operand` to the word at `remote`.
    FetchAdd = Opcode::FetchAdd as u16,
    /// Does nothing. An element that is switched on later holds it until then.
    Noop = Opcode::NoOp as u16,
    /// Waits for the completions of a queue.
    Wait = Opcode::Wait as u16,
    /// Lets a managed send queue run up to an index.
    Enable = Opcode::Enable as u16,
    /// Lets a managed receive queue be used up to an index.
    EnableRecv = Opcode::EnableRecv as u16,
    /// The word at `remote` becomes the larger of itself and `operand`.
    Max = Opcode::Max as u16,
    /// The word at `remote` becomes the smaller of itself and `operand`.
    Min = Opcode::Min as u16,
    /// The word at `remote` becomes its bitwise AND with `operand`.
    And = Opcode::And as u16,
    /// The word at `remote` becomes its bitwise OR with `operand`.
    Or = Opcode::Or as u16,
    /// The word at `remote` becomes its bitwise XOR with `operand`.
    Xor = Opcode::Xor as u16,
    /// Adds `operand` to the word at `remote`.
    Add = Opcode::Add as u16,
}

/// Every verb with its name in listings and in the text form.
pub const VERBS: [(Verb, &str); 16] = [
    (Verb::Send, "send"),
    (Verb::Write, "write"),
    (Verb::WriteImm, "write_imm"),
    (Verb::Read, "read"),
    (Verb::CompareSwap, "cas"),
    (Verb::FetchAdd, "fetch_add"),
    (Verb::Noop, "noop"),
    (Verb::Wait, "wait"),
    (Verb::Enable, "enable"),
    (Verb::EnableRecv, "enable_recv"),
    (Verb::Max, "max"),
    (Verb::Min, "min"),
    (Verb::And, "and"),
    (Verb::Or, "or"),
    (Verb::Xor, "xor"),
    (Verb::Add, "add"),
];

impl Verb {
    /// The op-code of this verb in an element.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The verb of an op-code.
    pub fn parse(code: u16) -> Option<Verb> {
        VERBS.iter().map(|&(verb, _)| verb).find(|verb| verb.code() == code)
    }

    /// The verb with this name.
    pub fn named(name: &str) -> Option<Verb> {
        VERBS.iter().find(|(_, known)| *known == name).map(|&(verb, _)| verb)
    }

    /// The verb's name in listings and in the text form.
    pub fn name(self) -> &'static str {
        VERBS.iter().find(|(verb, _)| *verb == self).map_or("?", |&(_, name)| name)
    }

    /// The column of RedN's Table 2 that counts this verb.
    pub const fn class(self) -> Class {
        match self {
            Verb::Send | Verb::Write | Verb::WriteImm | Verb::Read => Class::Copy,
            Verb::Wait | Verb::Enable | Verb::EnableRecv => Class::Order,
            Verb::Noop => Class::Nothing,
            _ => Class::Atomic,
        }
    }
}

/// The columns of RedN's Table 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// C: copies bytes.
    Copy,
    /// A: an atomic or calc verb.
    Atomic,
    /// E: WAIT or ENABLE.
    Order,
    /// Not counted: a NOOP that stays one and fills a ring.
    Nothing,
}
