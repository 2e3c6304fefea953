//! The op-codes of work-queue elements.

use crate::memory::Calc;
use crate::wire::Operation;
use crate::wire::opcode::Follows;

/// What an element asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Opcode {
    /// SEND.
    Send = 1,
    /// SEND with immediate data.
    SendImm = 2,
    /// SEND that invalidates a key at the receiver.
    SendInvalidate = 3,
    /// RDMA WRITE.
    Write = 4,
    /// RDMA WRITE with immediate data, which takes a receive element.
    WriteImm = 5,
    /// RDMA READ.
    Read = 6,
    /// Atomic compare and swap.
    CompareSwap = 7,
    /// Atomic fetch and add.
    FetchAdd = 8,
    /// Ends the binding of a memory window of type 2; nothing is sent.
    LocalInvalidate = 9,
    /// Binds a memory window; nothing is sent.
    BindMw = 10,
    /// RDMA WRITE of 8 bytes at once: no reader sees a part of them.
    AtomicWrite = 11,
    /// Waits until earlier writes are visible to all at the peer, or survive a loss of power.
    Flush = 12,
    /// Does nothing but complete.
    NoOp = 16,
    /// Holds its queue until a completion queue has counted enough completions (RedN §3.1).
    Wait = 17,
    /// Lets a managed send queue run further elements (RedN §3.1).
    Enable = 18,
    /// Lets further elements of a managed receive queue be used.
    EnableRecv = 19,
    /// Replaces a 64-bit word by the greater of it and the operand, without sign.
    Max = 20,
    /// Replaces a 64-bit word by the lesser of it and the operand, without sign.
    Min = 21,
    /// Replaces a 64-bit word by its conjunction with the operand.
    And = 22,
    /// Replaces a 64-bit word by its disjunction with the operand.
    Or = 23,
    /// Replaces a 64-bit word by its exclusive disjunction with the operand.
    Xor = 24,
    /// Adds the operand to a 64-bit word.
    Add = 25,
    /// Parameters for a kernel at the peer (StRoM §5.1).
    Rpc = 32,
    /// Payload for a kernel at the peer (StRoM §5.1).
    RpcWrite = 33,
}

impl Opcode {
    /// The op-code of this number, if it is one.
    pub fn parse(code: u16) -> Option<Opcode> {
        Some(match code {
            1 => Opcode::Send,
            2 => Opcode::SendImm,
            3 => Opcode::SendInvalidate,
            4 => Opcode::Write,
            5 => Opcode::WriteImm,
            6 => Opcode::Read,
            7 => Opcode::CompareSwap,
            8 => Opcode::FetchAdd,
            9 => Opcode::LocalInvalidate,
            10 => Opcode::BindMw,
            11 => Opcode::AtomicWrite,
            12 => Opcode::Flush,
            16 => Opcode::NoOp,
            17 => Opcode::Wait,
            18 => Opcode::Enable,
            19 => Opcode::EnableRecv,
            20 => Opcode::Max,
            21 => Opcode::Min,
            22 => Opcode::And,
            23 => Opcode::Or,
            24 => Opcode::Xor,
            25 => Opcode::Add,
            32 => Opcode::Rpc,
            33 => Opcode::RpcWrite,
            _ => return None,
        })
    }

    /// Is it compare-and-swap, fetch-and-add or a calc verb?
    pub const fn is_atomic(self) -> bool {
        matches!(
            self,
            Opcode::CompareSwap
                | Opcode::FetchAdd
                | Opcode::Max
                | Opcode::Min
                | Opcode::And
                | Opcode::Or
                | Opcode::Xor
                | Opcode::Add
        )
    }

    /// The op-code of a calc verb.
    pub const fn of(calc: Calc) -> Opcode {
        match calc {
            Calc::Max => Opcode::Max,
            Calc::Min => Opcode::Min,
            Calc::And => Opcode::And,
            Calc::Or => Opcode::Or,
            Calc::Xor => Opcode::Xor,
            Calc::Add => Opcode::Add,
        }
    }

    /// The calculation of a calc verb.
    pub const fn calc(self) -> Option<Calc> {
        Some(match self {
            Opcode::Max => Calc::Max,
            Opcode::Min => Calc::Min,
            Opcode::And => Calc::And,
            Opcode::Or => Calc::Or,
            Opcode::Xor => Calc::Xor,
            Opcode::Add => Calc::Add,
            _ => return None,
        })
    }

    /// Does the element only order others, or do nothing at all? Such an element's other fields are
    /// ignored.
    pub const fn is_order(self) -> bool {
        matches!(self, Opcode::NoOp | Opcode::Wait | Opcode::Enable | Opcode::EnableRecv)
    }

    /// Is it one of StRoM's two verbs?
    pub const fn is_rpc(self) -> bool {
        matches!(self, Opcode::Rpc | Opcode::RpcWrite)
    }

    /// Does its completion at the receiver become an event if the request is solicited?
    pub(crate) const fn tells_receiver(self) -> bool {
        matches!(self, Opcode::Send | Opcode::SendImm | Opcode::SendInvalidate | Opcode::WriteImm)
    }

    /// The operation on the wire, and the header that belongs to it. An op-code that sends no
    /// message counts as a WRITE.
    #[inline]
    pub(crate) const fn on_wire(self) -> (Operation, Follows) {
        match self {
            Opcode::Send => (Operation::Send, Follows::empty()),
            Opcode::SendImm => (Operation::Send, Follows::IMM),
            Opcode::SendInvalidate => (Operation::Send, Follows::IETH),
            Opcode::WriteImm => (Operation::Write, Follows::IMM),
            Opcode::Rpc => (Operation::Rpc, Follows::empty()),
            Opcode::RpcWrite => (Operation::RpcWrite, Follows::empty()),
            Opcode::AtomicWrite => (Operation::AtomicWrite, Follows::empty()),
            _ => (Operation::Write, Follows::empty()),
        }
    }

    /// Does the answer carry data?
    pub const fn returns_data(self) -> bool {
        matches!(self, Opcode::Read) || self.is_atomic()
    }

    /// Does the request have an answer of its own, so that an acknowledge alone does not complete
    /// it? A peer takes only an agreed number of such requests at once.
    pub const fn wants_response(self) -> bool {
        self.returns_data() || matches!(self, Opcode::AtomicWrite | Opcode::Flush)
    }

    /// Is the request carried out on this card, without a packet?
    pub const fn is_local(self) -> bool {
        matches!(self, Opcode::LocalInvalidate | Opcode::BindMw) || self.is_order()
    }

    /// Does the request have neither entries nor inline data?
    pub(crate) const fn is_bare(self) -> bool {
        self.is_local() || matches!(self, Opcode::Flush)
    }
}
