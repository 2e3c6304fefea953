//! From text to [`Item`]s. The parser reports a wrong line and continues with the next one.

use super::super::construct::Relation;
use super::diagnostic::Diagnostic;
use super::syntax::{
    At, ConditionText, CountText, ElementText, Item, MovSide, Name, PlaceText, PointerText,
    QueueKind, QueueText, Statement, Value,
};
use super::token::{Lexeme, tokens as cut};

/// The deepest nesting of blocks.
const NESTING: usize = 16;
/// The most bytes that all `zero` values of a file have together.
const ZERO_MAX: u64 = 1 << 20;
const STATEMENTS: &str = "statements are mov, add, max, min, and, or, xor, if, while, loop, \
                          repeat and break";
const ITEMS: &str = "a file holds data, queue, program, request and show";

type Parsed<T> = Result<T, Diagnostic>;

pub(super) struct Parser<'t> {
    text: &'t str,
    tokens: Vec<(Lexeme, At)>,
    next: usize,
    depth: usize,
    zeros: u64,
    pub(super) wrong: Vec<Diagnostic>,
}

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str) -> Parser<'t> {
        let (mut tokens, mut wrong) = (Vec::new(), Vec::new());
        for (token, at) in cut(text) {
            match token {
                Some(token) => tokens.push((token, at)),
                None => wrong.push(Diagnostic::new(
                    at,
                    "this is not part of the language",
                    "a comment begins with `#`, a text is in quotes on one line",
                )),
            }
        }
        tokens.push((Lexeme::End, text.len()..text.len()));
        Parser { text, tokens, next: 0, depth: 0, zeros: 0, wrong }
    }

    pub(super) fn items(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        loop {
            self.skip_newlines();
            if self.peek() == Lexeme::End {
                return items;
            }
            match self.item() {
                Ok(item) => items.push(item),
                Err(wrong) => {
                    self.recover(wrong);
                    self.take(Lexeme::Close);
                }
            }
        }
    }

    /// Reports a mistake and skips to the next line.
    fn recover(&mut self, wrong: Diagnostic) {
        self.wrong.push(wrong);
        // A block in braces after the mistake is skipped with it.
        let mut open = 0;
        loop {
            match self.peek() {
                Lexeme::End => return,
                Lexeme::Newline if open == 0 => return,
                Lexeme::Close if open == 0 => return,
                Lexeme::Open => open += 1,
                Lexeme::Close => open -= 1,
                _ => {}
            }
            self.next += 1;
        }
    }

    fn peek(&self) -> Lexeme {
        self.tokens[self.next].0
    }

    fn at(&self) -> At {
        self.tokens[self.next].1.clone()
    }

    fn before(&self) -> usize {
        self.tokens[self.next.saturating_sub(1)].1.end
    }

    fn since(&self, start: usize) -> At {
        start..self.before().max(start)
    }

    fn take(&mut self, token: Lexeme) -> bool {
        let found = self.peek() == token;
        if found && token != Lexeme::End {
            self.next += 1;
        }
        found
    }

    fn expect(&mut self, token: Lexeme, help: &str) -> Parsed<At> {
        let at = self.at();
        if self.take(token) {
            return Ok(at);
        }
        let found = self.peek().describe();
        let message = format!("expected {}, found {found}", token.describe());
        Err(Diagnostic::new(at, message, help))
    }

    fn skip_newlines(&mut self) {
        while self.take(Lexeme::Newline) {}
    }

    fn end_of_line(&mut self) -> Parsed<()> {
        if matches!(self.peek(), Lexeme::End | Lexeme::Close) || self.take(Lexeme::Newline) {
            return Ok(());
        }
        let found = self.peek().describe();
        let message = format!("expected the end of the line, found {found}");
        Err(Diagnostic::new(self.at(), message, "each statement or element has a line of its own"))
    }

    fn name(&mut self, help: &str) -> Parsed<Name> {
        let at = self.expect(Lexeme::Name, help)?;
        Ok(Name { text: self.text[at.clone()].to_owned(), at })
    }

    /// Takes the next token if it is this word; returns whether it was.
    fn word(&mut self, word: &str) -> bool {
        let found = self.peek() == Lexeme::Name && &self.text[self.at()] == word;
        self.next += usize::from(found);
        found
    }

    fn number(&mut self) -> Parsed<u64> {
        let at = self.expect(Lexeme::Number, "write numbers like 42, 0x2a or 1_000")?;
        let digits = self.text[at.clone()].replace('_', "");
        let number = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        number.map_err(|_| {
            Diagnostic::new(at, "this is not a number of 64 bits", "write 42, 0x2a or 1_000")
        })
    }

    fn item(&mut self) -> Parsed<Item> {
        let word = self.name(ITEMS)?;
        match word.text.as_str() {
            "data" => {
                let name = self.name("data has a name: `data x = 5`")?;
                self.expect(Lexeme::Is, "data has a value: `data x = 5`")?;
                let item = Item::Data(name, self.values()?);
                self.end_of_line().map(|()| item)
            }
            "request" => {
                let item = Item::Request(self.values()?);
                self.end_of_line().map(|()| item)
            }
            "show" => {
                let item = Item::Show(self.place()?);
                self.end_of_line().map(|()| item)
            }
            "program" => {
                let doorbell = self.word("doorbell");
                let block = self.block(Self::statement)?;
                Ok(Item::Program(doorbell, block, word.at))
            }
            "queue" => self.queue().map(Item::Queue),
            other => {
                let message = format!("a file does not hold `{other}`");
                Err(Diagnostic::new(word.at, message, ITEMS))
            }
        }
    }

    fn queue(&mut self) -> Parsed<QueueText> {
        const HELP: &str = "`queue NAME [reply|receive] [managed] [asleep|start N] { … }`";
        let name = self.name(HELP)?;
        let mut queue = QueueText {
            name,
            kind: QueueKind::Loop,
            managed: false,
            start: None,
            elements: Vec::new(),
        };
        while self.peek() == Lexeme::Name {
            let word = self.name(HELP)?;
            match word.text.as_str() {
                "reply" => queue.kind = QueueKind::Reply,
                "receive" => queue.kind = QueueKind::Receive,
                "managed" => queue.managed = true,
                "asleep" => queue.start = Some(0),
                "start" => queue.start = Some(self.number()?),
                _ => return Err(Diagnostic::new(word.at, "a queue has no such option", HELP)),
            }
        }
        queue.elements = self.block(Self::element)?;
        Ok(queue)
    }

    /// Parses `{`, lines, and `}`. Reports wrong lines itself.
    fn block<T>(&mut self, line: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let open = self.expect(Lexeme::Open, "a block is in braces")?;
        if self.depth >= NESTING {
            let help = "at most 16 blocks may be inside each other";
            return Err(Diagnostic::new(open, "this block is nested too deeply", help));
        }
        self.depth += 1;
        let mut lines = Vec::new();
        loop {
            self.skip_newlines();
            if self.take(Lexeme::Close) {
                break;
            }
            if self.peek() == Lexeme::End {
                self.depth -= 1;
                let help = "close it with `}` on a line of its own";
                return Err(Diagnostic::new(open, "this block is never closed", help));
            }
            match line(self) {
                Ok(line) => lines.push(line),
                Err(wrong) => self.recover(wrong),
            }
        }
        self.depth -= 1;
        Ok(lines)
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let word = self.name(STATEMENTS)?;
        let statement = match word.text.as_str() {
            "mov" => {
                let to = self.mov_side()?;
                self.expect(Lexeme::Comma, "`mov TO, FROM`")?;
                let from = self.mov_side()?;
                Statement::Mov(to, from, self.since(word.at.start))
            }
            "if" => return self.if_(),
            "while" => {
                let condition = self.condition()?;
                Statement::While(condition, self.block(Self::statement)?, word.at)
            }
            "loop" => Statement::Loop(self.block(Self::statement)?, word.at),
            "repeat" => {
                let times = self.number()?;
                Statement::Repeat(times, self.block(Self::statement)?, word.at)
            }
            "break" => Statement::Break(word.at),
            "add" | "max" | "min" | "and" | "or" | "xor" => {
                let place = self.place()?;
                self.expect(Lexeme::Comma, "`add PLACE, VALUE`")?;
                Statement::Calc(word, place, self.value()?)
            }
            other => {
                let message = format!("`{other}` is not a statement");
                return Err(Diagnostic::new(word.at, message, STATEMENTS));
            }
        };
        self.end_of_line().map(|()| statement)
    }

    fn if_(&mut self) -> Parsed<Statement> {
        let condition = self.condition()?;
        let then = self.block(Self::statement)?;
        let otherwise = if self.word("else") { self.block(Self::statement)? } else { Vec::new() };
        self.end_of_line().map(|()| Statement::If(condition, then, otherwise))
    }

    fn condition(&mut self) -> Parsed<ConditionText> {
        const HELP: &str = "conditions compare: `x == 5`, also with !=, <, <=, >, >=";
        let start = self.at().start;
        let left = self.value()?;
        let relation = match self.peek() {
            Lexeme::Equal => Relation::Equal,
            Lexeme::NotEqual => Relation::NotEqual,
            Lexeme::Less => Relation::Less,
            Lexeme::AtMost => Relation::AtMost,
            Lexeme::Greater => Relation::Greater,
            Lexeme::AtLeast => Relation::AtLeast,
            other => {
                let message = format!("expected a comparison, found {}", other.describe());
                return Err(Diagnostic::new(self.at(), message, HELP));
            }
        };
        self.next += 1;
        let right = self.value()?;
        Ok(ConditionText { left, relation, right, at: self.since(start) })
    }

    fn mov_side(&mut self) -> Parsed<MovSide> {
        if !self.take(Lexeme::OpenPointer) {
            return self.value().map(MovSide::Value);
        }
        let register = self.place()?;
        let index = if self.take(Lexeme::Plus) { Some(self.place()?) } else { None };
        self.expect(Lexeme::ClosePointer, "memory is `[register]` or `[register + register]`")?;
        Ok(MovSide::Pointer(PointerText { register, index }))
    }

    fn values(&mut self) -> Parsed<Vec<Value>> {
        let mut values = vec![self.value()?];
        while self.take(Lexeme::Comma) {
            self.skip_newlines();
            values.push(self.value()?);
        }
        Ok(values)
    }

    fn value(&mut self) -> Parsed<Value> {
        let at = self.at();
        match self.peek() {
            Lexeme::Number => Ok(Value::Number(self.number()?, at)),
            Lexeme::Text => {
                self.next += 1;
                Ok(Value::Text(self.text[at.start + 1..at.end - 1].to_owned(), at))
            }
            Lexeme::Ampersand => {
                self.next += 1;
                self.place().map(Value::Address)
            }
            Lexeme::Name if self.word("zero") => {
                let bytes = self.number()?;
                self.zeros = self.zeros.saturating_add(bytes);
                if self.zeros > ZERO_MAX {
                    let help = "all `zero` values of a file have at most 1 MiB together";
                    return Err(Diagnostic::new(self.since(at.start), "too many bytes", help));
                }
                Ok(Value::Zero(bytes, self.since(at.start)))
            }
            Lexeme::Name => self.head_or_place(),
            other => {
                let message = format!("expected a value, found {}", other.describe());
                let help = "values are numbers, places, addresses as `&x`, and first words of \
                            elements as `write:5`";
                Err(Diagnostic::new(at, message, help))
            }
        }
    }

    /// `write:5` starts like `x:8`, but its name is a verb.
    fn head_or_place(&mut self) -> Parsed<Value> {
        let at = self.at();
        let is_verb = super::super::verb::Verb::named(&self.text[at]).is_some();
        let colon =
            self.tokens.get(self.next + 1).is_some_and(|(token, _)| *token == Lexeme::Colon);
        if !(is_verb && colon) {
            return self.place().map(Value::Place);
        }
        let verb = self.name("")?;
        self.next += 1;
        Ok(Value::Head(verb, self.number()?))
    }

    fn place(&mut self) -> Parsed<PlaceText> {
        let name = self.name("a place is a name, perhaps with a field, as `x` or `r4.opcode`")?;
        let start = name.at.start;
        let field = if self.take(Lexeme::Dot) {
            Some(self.name("fields are opcode, id, src, dst, old, new, count, …")?)
        } else {
            None
        };
        let is_offset = self.peek() == Lexeme::Plus
            && self.tokens.get(self.next + 1).is_some_and(|(token, _)| *token == Lexeme::Number);
        let offset = if is_offset {
            self.next += 1;
            self.number()?
        } else {
            0
        };
        let len = if self.take(Lexeme::Colon) { Some(self.number()?) } else { None };
        Ok(PlaceText { name, field, offset, len, at: self.since(start) })
    }

    fn element(&mut self) -> Parsed<ElementText> {
        const VERB: &str = "an element is `[label:] [off] verb operands`";
        let mut verb = self.name(VERB)?;
        let mut label = None;
        if self.take(Lexeme::Colon) {
            label = Some(verb);
            verb = self.name(VERB)?;
        }
        let off = verb.text == "off";
        if off {
            verb = self.name(VERB)?;
        }
        let mut element = ElementText {
            label,
            off,
            verb,
            from: Vec::new(),
            becomes: None,
            to: Vec::new(),
            queue: None,
            count: None,
            id: 0,
            silent: false,
        };
        match element.verb.text.as_str() {
            "wait" | "enable" | "enable_recv" => self.order(&mut element)?,
            "noop" => {}
            _ => self.operands(&mut element)?,
        }
        loop {
            match () {
                () if self.word("id") => element.id = self.number()?,
                () if self.word("silent") => element.silent = true,
                () => return self.end_of_line().map(|()| element),
            }
        }
    }

    fn order(&mut self, element: &mut ElementText) -> Parsed<()> {
        const HELP: &str = "`wait QUEUE 3`, `enable QUEUE through r4` or `enable QUEUE gate`";
        element.queue = Some(self.name(HELP)?);
        element.count = Some(match () {
            () if self.word("through") => CountText::Through(self.name(HELP)?),
            () if self.word("gate") => CountText::Gate,
            () => CountText::Number(self.number()?),
        });
        Ok(())
    }

    fn operands(&mut self, element: &mut ElementText) -> Parsed<()> {
        if matches!(self.peek(), Lexeme::Newline | Lexeme::Close) {
            return Ok(());
        }
        if self.peek() != Lexeme::To {
            element.from = self.values()?;
        }
        if self.take(Lexeme::Becomes) {
            element.becomes = Some(self.value()?);
        }
        if self.take(Lexeme::To) {
            element.to.push(self.place()?);
            while self.take(Lexeme::Comma) {
                self.skip_newlines();
                element.to.push(self.place()?);
            }
        }
        Ok(())
    }
}
