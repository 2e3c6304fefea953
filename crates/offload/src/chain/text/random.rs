//! Random programs: the card and its model do what a plain reading of the language says.

use remora_nic::split_mix::SplitMix;

use super::tests::shows;

/// Words of the program, beside the counters of its loops.
const CELLS: usize = 4;
const RELATIONS: [&str; 6] = ["==", "!=", "<", ">=", ">", "<="];

#[derive(Debug)]
enum Statement {
    Mov(usize, Value),
    Add(usize, Value),
    If(Test, Vec<Statement>, Vec<Statement>),
    /// The body raises a counter first.
    While(Test, Vec<Statement>),
    Loop(Vec<Statement>),
    Repeat(u64, Vec<Statement>),
    Break,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Number(u64),
    Cell(usize),
}

#[derive(Clone, Copy, Debug)]
struct Test(Value, &'static str, Value);

/// What may stand at a place of a program.
#[derive(Clone, Copy)]
struct Around {
    in_if: bool,
    in_ring: bool,
    can_break: bool,
}

impl Around {
    fn can_loop(self) -> bool {
        !self.in_if && !self.in_ring
    }
}

/// Writes programs; the numbers come from a seed.
struct Author {
    numbers: SplitMix,
    cells: usize,
}

impl Author {
    fn below(&mut self, end: u64) -> u64 {
        self.numbers.number() % end
    }

    fn value(&mut self) -> Value {
        match self.below(2) {
            0 => Value::Number(self.below(5)),
            _ => Value::Cell(self.below(CELLS as u64) as usize),
        }
    }

    fn test(&mut self) -> Test {
        let relation = RELATIONS[self.below(6) as usize];
        Test(self.value(), relation, self.value())
    }

    fn block(&mut self, around: Around, depth: u32) -> Vec<Statement> {
        let len = self.below(4);
        (0..len).map(|_| self.statement(around, depth)).collect()
    }

    fn statement(&mut self, around: Around, depth: u32) -> Statement {
        let cell = self.below(CELLS as u64) as usize;
        match self.below(9) {
            0 | 1 if depth > 0 => {
                let inner = Around { in_if: true, ..around };
                let test = self.test();
                Statement::If(test, self.block(inner, depth - 1), self.block(inner, depth - 1))
            }
            2 | 3 if depth > 0 && around.can_loop() => self.looped(depth - 1),
            4 if depth > 0 => {
                let inner = Around { can_break: around.can_loop(), ..around };
                Statement::Repeat(1 + self.below(3), self.block(inner, depth - 1))
            }
            5 if around.can_break => Statement::Break,
            6 => Statement::Mov(cell, self.value()),
            _ => Statement::Add(cell, self.value()),
        }
    }

    /// A loop that ends, by its test or by a break.
    fn looped(&mut self, depth: u32) -> Statement {
        let counter = self.cells;
        self.cells += 1;
        let limit = Value::Number(1 + self.below(5));
        let inner = Around { in_if: false, in_ring: true, can_break: true };
        let mut body = self.block(inner, depth);
        body.insert(0, Statement::Add(counter, Value::Number(1)));
        if self.below(2) == 0 {
            return Statement::While(Test(Value::Cell(counter), "<", limit), body);
        }
        let enough = Test(limit, "<=", Value::Cell(counter));
        body.insert(1, Statement::If(enough, vec![Statement::Break], vec![]));
        Statement::Loop(body)
    }
}

fn name(value: Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Cell(cell) => format!("c{cell}"),
    }
}

fn text(block: &[Statement]) -> String {
    let is =
        |Test(left, relation, right): &Test| format!("{} {relation} {}", name(*left), name(*right));
    let line = |statement: &Statement| match statement {
        Statement::Mov(to, value) => format!("mov c{to}, {}\n", name(*value)),
        Statement::Add(to, value) => format!("add c{to}, {}\n", name(*value)),
        Statement::If(test, then, otherwise) => {
            format!("if {} {{\n{}}} else {{\n{}}}\n", is(test), text(then), text(otherwise))
        }
        Statement::While(test, body) => format!("while {} {{\n{}}}\n", is(test), text(body)),
        Statement::Loop(body) => format!("loop {{\n{}}}\n", text(body)),
        Statement::Repeat(times, body) => format!("repeat {times} {{\n{}}}\n", text(body)),
        Statement::Break => "break\n".to_owned(),
    };
    block.iter().map(line).collect()
}

/// Reads a program plainly.
struct Reader {
    cells: Vec<u64>,
    leaves: bool,
}

impl Reader {
    fn value(&self, value: Value) -> u64 {
        match value {
            Value::Number(number) => number,
            Value::Cell(cell) => self.cells[cell],
        }
    }

    fn holds(&self, Test(left, relation, right): Test) -> bool {
        let [left, right] = [left, right].map(|value| self.value(value) & ((1 << 48) - 1));
        match relation {
            "==" => left == right,
            "!=" => left != right,
            "<" => left < right,
            ">=" => left >= right,
            ">" => left > right,
            _ => left <= right,
        }
    }

    /// A `break` leaves when the `if` that it stands in has ended.
    fn block(&mut self, block: &[Statement], in_if: bool) {
        for statement in block {
            self.statement(statement, in_if);
            if self.leaves && !in_if {
                return;
            }
        }
    }

    fn statement(&mut self, statement: &Statement, in_if: bool) {
        match statement {
            Statement::Mov(to, value) => self.cells[*to] = self.value(*value),
            Statement::Add(to, value) => {
                self.cells[*to] = self.cells[*to].wrapping_add(self.value(*value));
            }
            Statement::If(test, then, otherwise) => {
                let taken = if self.holds(*test) { then } else { otherwise };
                self.block(taken, true);
            }
            Statement::While(test, body) => self.rounds(u64::MAX, Some(*test), body),
            Statement::Loop(body) => self.rounds(u64::MAX, None, body),
            Statement::Repeat(times, body) if in_if => {
                (0..*times).for_each(|_| self.block(body, true));
            }
            Statement::Repeat(times, body) => self.rounds(*times, None, body),
            Statement::Break => self.leaves = true,
        }
    }

    fn rounds(&mut self, most: u64, test: Option<Test>, body: &[Statement]) {
        for _ in 0..most {
            if test.is_some_and(|test| !self.holds(test)) {
                return;
            }
            self.block(body, false);
            if std::mem::take(&mut self.leaves) {
                return;
            }
        }
    }
}

#[test]
fn random_programs_do_what_they_say() {
    for seed in 0..2000 {
        let mut author = Author { numbers: SplitMix::new(seed), cells: CELLS };
        let starts: Vec<u64> = (0..CELLS).map(|_| author.below(5)).collect();
        let around = Around { in_if: false, in_ring: false, can_break: false };
        let block: Vec<Statement> = (0..6).map(|_| author.statement(around, 3)).collect();
        let mut cells = starts;
        cells.resize(author.cells, 0);
        let data: String = (cells.iter().enumerate())
            .map(|(cell, value)| format!("data c{cell} = {value}\nshow c{cell}\n"))
            .collect();
        let order = ["", "doorbell "][(seed % 2) as usize];
        let text = format!("{data}program {order}{{\n{}}}\n", text(&block));
        let mut reader = Reader { cells, leaves: false };
        reader.block(&block, false);
        assert_eq!(shows(&text), reader.cells, "seed {seed}:\n{text}");
    }
}
