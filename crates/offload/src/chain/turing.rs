//! Turing machines as chains: a machine given by its table, and a machine for any elementary
//! cellular automaton such as Rule 110, which shows that chains compute whatever can be computed.
//!
//! A machine is one recycled ring of eight elements with two pieces of data, the table and the
//! tape. A lap of the ring is a step of the machine: it adds the symbol under the head to the
//! address of the state's row, and scatters the table's entry there into the elements that write,
//! move and continue, and into the row's address.

use super::element::{Field, Label, QueueId};
use super::link::Layout;
use super::place::{Place, Span, Word};
use super::program::{Program, Start};
use super::request::{Count, Request};
use super::verb::Verb;
use thiserror::Error;

/// Where the head goes after a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Move {
    /// To the cell with the next lower index.
    Left,
    /// To the cell with the next higher index.
    Right,
}

/// What a machine does in one state when it reads one symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Action {
    /// The symbol to write.
    pub write: u8,
    /// Where the head goes.
    pub go: Move,
    /// The next state; `None` halts the machine.
    pub next: Option<u16>,
}

/// A Turing machine as a table of actions by state and symbol. All rows have the same length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    table: Vec<Vec<Action>>,
}

/// Why a table does not describe a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TableError {
    /// The table has no states.
    #[error("the table has no states")]
    Empty,
    /// A row is longer or shorter than the first row.
    #[error("state {state} knows {len} symbols, and the first state {symbols}: one each is wanted")]
    Row {
        /// The state of the row.
        state: usize,
        /// The number of the row's symbols.
        len: usize,
        /// The number of the first row's symbols.
        symbols: usize,
    },
    /// An action writes a symbol that has no column.
    #[error("state {state} writes {symbol}, a symbol that has no column")]
    Symbol {
        /// The action's state.
        state: usize,
        /// The symbol.
        symbol: u8,
    },
    /// An action continues in a state that has no row.
    #[error("state {state} is followed by {next}, a state that has no row")]
    State {
        /// The action's state.
        state: usize,
        /// The next state.
        next: u16,
    },
}

/// Bytes of an entry of the table: next row, symbol, movement, and the op-code of the gate.
const ENTRY: u64 = 32;
/// Bytes of a cell of the tape. It holds the offset of its symbol's entry in any row.
const CELL: u64 = 8;

impl Machine {
    /// A machine with this table. It starts in state 0.
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn new(table: Vec<Vec<Action>>) -> Result<Machine, TableError> {
        let symbols = table.first().map_or(0, Vec::len);
        for (state, row) in table.iter().enumerate() {
            if row.len() != symbols || symbols == 0 {
                return Err(TableError::Row { state, len: row.len(), symbols });
            }
            for action in row {
                if usize::from(action.write) >= symbols {
                    return Err(TableError::Symbol { state, symbol: action.write });
                }
                if let Some(next) = action.next.filter(|&next| usize::from(next) >= table.len()) {
                    return Err(TableError::State { state, next });
                }
            }
        }
        if table.is_empty() { Err(TableError::Empty) } else { Ok(Machine { table }) }
    }

    /// A machine that computes the generations of an elementary cellular automaton with Wolfram's
    /// rule number `rule`. Cells beyond the ends are 0.
    ///
    /// Symbols are 0, 1 and [`EDGE`]; the tape holds an edge, the cells, and two edges, and the
    /// head starts at the first cell. Each sweep over the row computes one generation. The machine
    /// knows a cell's new value only after it has read the next cell, and writes the value there.
    /// So a sweep to the right shifts the row by one cell, and the following sweep to the left
    /// shifts it back.
    pub fn automaton(rule: u8) -> Machine {
        let mut table = Vec::new();
        for right in [true, false] {
            let (go, back) =
                if right { (Move::Right, Move::Left) } else { (Move::Left, Move::Right) };
            let base = if right { 0 } else { SWEEP };
            let window = |far: u8, near: u8| Some(base + 1 + u16::from(far * 2 + near));
            let turn = base + SWEEP - 1;
            let act = |write, next| Action { write, go, next };
            // The first cell of the sweep: an edge takes the cell's place.
            let first = |cell: u8| act(EDGE, window(0, cell));
            table.push(vec![first(0), first(1), act(EDGE, Some(0))]);
            for (far, near) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let new = |next: u8| {
                    let (l, r) = if right { (far, next) } else { (next, far) };
                    rule >> (4 * l + 2 * near + r) & 1
                };
                let inner = |next: u8| act(new(next), window(near, next));
                table.push(vec![inner(0), inner(1), act(new(0), Some(turn))]);
            }
            let other = Some(if right { SWEEP } else { 0 });
            table.push(vec![Action { write: EDGE, go: back, next: other }; 3]);
        }
        Machine { table }
    }

    /// The tape of an automaton with these cells.
    pub fn automaton_tape(cells: &[u8]) -> Vec<u8> {
        [&[EDGE], cells, &[EDGE, EDGE]].concat()
    }

    /// The start configuration: state 0, with the head at cell `head` of `tape`.
    pub fn start(&self, tape: &[u8], head: usize) -> Configuration {
        Configuration { tape: tape.to_vec(), head, state: Some(0) }
    }

    /// Takes one step with a plain interpreter. Returns false if the machine has halted, or if its
    /// head has left the tape.
    pub fn step(&self, at: &mut Configuration) -> bool {
        let Some(state) = at.state else { return false };
        let Some(cell) = at.tape.get_mut(at.head) else { return false };
        let action = self.table[usize::from(state)][usize::from(*cell)];
        *cell = action.write;
        at.state = action.next;
        at.head = match action.go {
            Move::Left => at.head.wrapping_sub(1),
            Move::Right => at.head + 1,
        };
        true
    }

    /// Compiles the machine into a chain that runs without the host once it is started. The chain
    /// halts when the machine does; a head that leaves the tape ends it with an access error.
    pub fn compile(&self, tape: &[u8], head: usize) -> Compiled {
        let mut program = Program::new();
        let ring = program.managed("machine", Start::Running);
        let symbols = self.table[0].len() as u64;
        let cells: Vec<Word> =
            tape.iter().map(|&symbol| Word::Number(u64::from(symbol) * ENTRY)).collect();
        let cells = program.words("tape", &cells);
        let row = |table: Span, state: u16| table.at.plus(u64::from(state) * symbols * ENTRY);
        let table =
            program.words("table", &vec![Word::Number(0); self.table.len() * 4 * symbols as usize]);
        let entries = self.table.iter().flatten().enumerate();
        for (i, action) in entries {
            let at = table.at.plus(i as u64 * ENTRY);
            let step = if action.go == Move::Right { CELL } else { CELL.wrapping_neg() };
            let goes_on = if action.next.is_some() { Verb::Enable } else { Verb::Noop };
            // A machine that has halted keeps the row of the state it halted in.
            let state = action.next.unwrap_or((i as u64 / symbols) as u16);
            program.set_word(at, Word::Address(row(table, state)));
            program.set_word(at.plus(8), Word::Number(u64::from(action.write) * ENTRY));
            program.set_word(at.plus(16), Word::Number(step));
            program.set_word(at.plus(24), Word::Head(goes_on, 0));
        }
        let gate = lap(&mut program, ring, cells.at.plus(head as u64 * CELL), table.at);
        Compiled { program, ring, tape: cells, gate }
    }
}

/// States that one sweep needs.
const SWEEP: u16 = 6;
/// The symbol at both ends of an automaton's row.
pub const EDGE: u8 = 2;

/// Appends the eight elements of a step. Returns the gate, which starts the next step or halts.
fn lap(program: &mut Program, ring: QueueId, head: Place, row: Place) -> Label {
    let names = ["symbol", "add", "look", "move", "store", "gate"];
    let [symbol, add, look, go, store, gate] = names.map(|name| program.label(name));
    let put = |program: &mut Program, label: Label, request: Request| {
        program.put(ring, label, request.silent());
    };
    put(program, symbol, Request::write(&[head.span(8)], add.field(Field::Operand).at));
    let source = look.field(Field::Remote);
    put(program, add, Request::calc(Verb::Add, source.at, Word::Number(0)));
    let into =
        [source, store.field(Field::Addr(0)), go.field(Field::Operand), gate.field(Field::Head)];
    put(program, look, Request::read(row, &into));
    // The atomic returns the head's old address, which is where the symbol goes.
    let at = symbol.field(Field::Addr(0)).at;
    let moves = Request::calc(Verb::Add, at, Word::Number(0));
    put(program, go, moves.into_local(store.field(Field::Remote)));
    put(program, store, Request::write_constant(Word::Number(0), head));
    let raise = Request::calc(Verb::Add, gate.field(Field::Remote).at, Word::Number(8));
    program.push(ring, raise.silent());
    // This NOOP counts the steps by its completion.
    program.push(ring, Request::noop());
    put(program, gate, Request::enable(ring, Count::Number(8)));
    gate
}

/// The state of a machine between two steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration {
    /// The symbols of the tape.
    pub tape: Vec<u8>,
    /// The index of the cell that the head is at.
    pub head: usize,
    /// The state; `None` after the machine has halted.
    pub state: Option<u16>,
}

/// A machine as a chain.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The program.
    pub program: Program,
    /// Its ring. A lap of eight elements is a step, and counts one completion.
    pub ring: QueueId,
    /// The tape in the program's data.
    pub tape: Span,
    /// The element that continues; it is a NOOP after the machine has halted.
    pub gate: Label,
}

impl Compiled {
    /// The address of the tape.
    pub fn tape_addr(&self, layout: &Layout) -> u64 {
        self.program.address(layout, self.tape.at)
    }

    /// The symbols of a tape's bytes.
    pub fn symbols(bytes: &[u8]) -> Vec<u8> {
        let symbol = |cell: &[u8]| {
            let offset = cell.try_into().map_or(0, u64::from_le_bytes);
            u8::try_from(offset / ENTRY).unwrap_or(u8::MAX)
        };
        bytes.chunks_exact(CELL as usize).map(symbol).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::card::ChainCard;
    use super::super::model::{End, Model};
    use super::*;

    /// Runs the interpreter and the chain side by side. Returns the steps until the machine halted,
    /// at most `most`, and the tape.
    fn side_by_side(machine: &Machine, tape: &[u8], head: usize, most: usize) -> (usize, Vec<u8>) {
        let compiled = machine.compile(tape, head);
        let mut model = Model::new(&compiled.program, &[]).unwrap();
        let mut plain = machine.start(tape, head);
        let mut card = ChainCard::new(&compiled.program, &[]).unwrap();
        let at = compiled.tape_addr(model.layout());
        // The card runs ahead of the interpreter, so its steps are taken from a trace.
        let mut laps = card.trace(8 * most).into_iter();
        let mut shadow = vec![0; 8 * tape.len()];
        for (cell, symbol) in shadow.chunks_exact_mut(8).zip(tape) {
            cell.copy_from_slice(&(u64::from(*symbol) * ENTRY).to_le_bytes());
        }
        for step in 0..most {
            let lap = model.run_in_turn(8);
            assert!(lap.iter().all(|step| step.end == End::Done));
            for change in laps.by_ref().take(8).flat_map(|step| step.changes) {
                if let Some(offset) = change.addr.checked_sub(at)
                    && let Some(cell) = shadow.get_mut(offset as usize..offset as usize + 8)
                {
                    cell.copy_from_slice(&change.after);
                }
            }
            let halted = !machine.step(&mut plain);
            // Expect: the same tape after every step, and the same end.
            let tape = Compiled::symbols(model.bytes(at, 8 * tape.len()));
            assert_eq!(tape, plain.tape, "step {step}");
            assert_eq!(Compiled::symbols(&shadow), plain.tape, "step {step} on the card");
            assert_eq!(lap.is_empty(), halted);
            if halted {
                return (step, tape);
            }
        }
        (most, plain.tape)
    }

    /// The busy beaver of four states: it halts after 107 steps with 13 ones.
    fn busy_beaver() -> Machine {
        let act = |write, right: bool, next: u16| Action {
            write,
            go: if right { Move::Right } else { Move::Left },
            next: (next < 4).then_some(next),
        };
        Machine::new(vec![
            vec![act(1, true, 1), act(1, false, 1)],
            vec![act(1, false, 0), act(0, false, 2)],
            vec![act(1, true, 4), act(1, false, 3)],
            vec![act(1, true, 3), act(0, true, 0)],
        ])
        .unwrap()
    }

    #[test]
    fn a_busy_beaver_halts_where_it_should() {
        let (steps, tape) = side_by_side(&busy_beaver(), &[0; 32], 20, 1000);
        assert_eq!(steps, 107);
        assert_eq!(tape.iter().filter(|&&symbol| symbol == 1).count(), 13);
    }

    /// The next generation, computed directly from the rule's definition.
    fn next_row(rule: u8, row: &[u8]) -> Vec<u8> {
        let cell = |i: usize| row.get(i).copied().unwrap_or(0);
        (0..row.len())
            .map(|i| rule >> (4 * cell(i.wrapping_sub(1)) + 2 * cell(i) + cell(i + 1)) & 1)
            .collect()
    }

    #[test]
    fn rule_110_has_the_generations_of_its_definition() {
        let row: Vec<u8> = (0..40).map(|i| u8::from(i == 37 || i % 7 == 3)).collect();
        let machine = Machine::automaton(110);
        let tape = Machine::automaton_tape(&row);
        let sweep = row.len() + 2;
        for generations in [2, 4, 40] {
            let (_, tape) = side_by_side(&machine, &tape, 1, generations * sweep);
            let mut expected = row.clone();
            for _ in 0..generations {
                expected = next_row(110, &expected);
            }
            // Expect: after an even number of sweeps the row is back at its first cell.
            assert_eq!(tape[1..=row.len()], expected);
        }
        for rule in [0, 30, 90, 184, 255] {
            let machine = Machine::automaton(rule);
            let (_, tape) = side_by_side(&machine, &tape, 1, 2 * sweep);
            assert_eq!(tape[1..=row.len()], next_row(rule, &next_row(rule, &row)));
        }
    }

    #[test]
    fn tables_that_are_none_are_refused() {
        let act = |write, next| Action { write, go: Move::Left, next };
        let fine = act(0, None);
        assert_eq!(Machine::new(vec![]), Err(TableError::Empty));
        let (state, symbols) = (1, 2);
        let row = Machine::new(vec![vec![fine; 2], vec![fine]]);
        assert_eq!(row, Err(TableError::Row { state, len: 1, symbols }));
        let symbol = Machine::new(vec![vec![fine; 2], vec![fine, act(2, None)]]);
        assert_eq!(symbol, Err(TableError::Symbol { state, symbol: 2 }));
        let next = Machine::new(vec![vec![fine; 2], vec![act(1, Some(2)), fine]]);
        assert_eq!(next, Err(TableError::State { state, next: 2 }));
    }

    #[test]
    fn a_head_that_leaves_the_tape_ends_the_chain() {
        let act = Action { write: 1, go: Move::Right, next: Some(0) };
        let machine = Machine::new(vec![vec![act, act]]).unwrap();
        let compiled = machine.compile(&[0; 4], 0);
        let mut model = Model::new(&compiled.program, &[]).unwrap();
        // The table follows the tape in the same region, and its words are not symbols.
        let steps = model.run_in_turn(10_000);
        assert!(matches!(steps.last().map(|step| step.end), Some(End::Failed(_))));
    }
}
