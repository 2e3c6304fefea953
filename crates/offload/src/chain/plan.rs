//! Where the pieces of a program lie in a memory of its own: for the interpreter and for a card
//! without a host.

use super::element::QueueId;
use super::link::{Image, LinkError};
use super::program::Program;

/// Address of the first piece. Address 0 stays unused.
const FIRST: u64 = 0x1_0000;
/// Unused bytes between two pieces, so that an access past a piece's end is noticed.
const GAP: u64 = 64;

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// A program's pieces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    /// The ring of each queue.
    pub(crate) rings: Vec<Piece>,
    pub(crate) data: Piece,
    pub(crate) imports: Vec<Piece>,
    /// Bytes of memory, up to the end of the last piece.
    pub(crate) end: u64,
}

impl Plan {
    /// Lays out `program`, with imports of these lengths in bytes.
    pub(crate) fn new(program: &Program, imports: impl IntoIterator<Item = usize>) -> Plan {
        let mut plan = Plan { end: FIRST, ..Plan::default() };
        for (i, queue) in program.queues().iter().enumerate() {
            let ring = plan.piece(u64::from(queue.depth() * program.stride(QueueId(i))));
            plan.rings.push(ring);
        }
        plan.data = plan.piece(program.data_len() as u64);
        for len in imports {
            let import = plan.piece(len as u64);
            plan.imports.push(import);
        }
        plan
    }

    /// Adds a piece behind the others.
    pub(crate) fn piece(&mut self, len: u64) -> Piece {
        let piece = Piece { addr: self.end, len };
        self.end = (self.end + len + GAP).next_multiple_of(GAP);
        piece
    }

    /// The bytes of memory with a program's image and imports in it.
    pub(crate) fn load(&self, image: &Image, imports: &[&[u8]]) -> Vec<u8> {
        let mut memory = vec![0; self.end as usize];
        let images = image.queues.iter().chain([&image.data]).map(Vec::as_slice);
        let pieces = self.rings.iter().chain([&self.data]).chain(&self.imports);
        for (piece, bytes) in pieces.zip(images.chain(imports.iter().copied())) {
            memory[piece.addr as usize..piece.addr as usize + bytes.len()].copy_from_slice(bytes);
        }
        memory
    }

    /// All pieces that the program has keys for.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.rings.iter().chain([&self.data]).chain(&self.imports).copied()
    }

    /// Checks that `imports` is the number of the program's imports.
    pub(crate) fn check(program: &Program, imports: usize) -> Result<(), LinkError> {
        let wants = program.imports().len();
        if imports == wants {
            return Ok(());
        }
        Err(LinkError::Layout(format!("{imports} imports"), format!("{wants}")))
    }
}
