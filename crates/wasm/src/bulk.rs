//! Instructions that are counted for more than one, as they do more work.
//!
//! `memory.copy`, `memory.fill` and `memory.init` may do any amount of work, and wasmtime counts
//! each as one instruction. So a module's bulk instructions become calls of functions that are
//! added to the module. These work in pieces of [`PIECE`] bytes: a turn of a loop for each, whose
//! instructions are counted like any others, and between which the guest can be suspended.
//!
//! Other instructions are calls of the host, such as `memory.grow`. Before each of them stands a
//! call of a function that does nothing, for as many instructions as that is worth: wasmtime looks
//! at the count where functions and loops begin, and nowhere else.

use core::convert::Infallible;

use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, Function, FunctionSection, Instruction, InstructionSink, Module,
    TypeSection, ValType,
};
use wasmparser::{
    CodeSectionReader, CustomSectionReader, FunctionBody, FunctionSectionReader, Operator,
};

/// Bytes of bulk memory for each turn of a loop.
const PIECE: i32 = 256;

/// Turns of the loop before a call of the host, of five instructions each.
const TOLL: i32 = 100;

/// Does an operator call the host?
pub(crate) fn calls_host(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::MemoryGrow { .. }
            | Operator::TableGrow { .. }
            | Operator::DataDrop { .. }
            | Operator::ElemDrop { .. }
            | Operator::RefFunc { .. }
    )
}

/// A bulk instruction. Its operands are a destination, a source (or a value), and a length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Bulk {
    /// `memory.copy`
    Copy,
    /// `memory.fill`
    Fill,
    /// `memory.init` of a data segment.
    Init(u32),
}

impl Bulk {
    /// The bulk instruction that an operator is, if it is one.
    pub(crate) fn of(operator: &Operator<'_>) -> Option<Bulk> {
        match operator {
            Operator::MemoryCopy { .. } => Some(Bulk::Copy),
            Operator::MemoryFill { .. } => Some(Bulk::Fill),
            Operator::MemoryInit { data_index, .. } => Some(Bulk::Init(*data_index)),
            _ => None,
        }
    }
}

/// Where a module's counted functions stand in it.
pub(crate) struct Counted {
    /// The instructions that they stand for, in the functions' order.
    pub(crate) bulk: Vec<Bulk>,
    /// The index of their type, behind all others. Behind it is that of the last one.
    pub(crate) type_index: u32,
    /// The index of the first one, behind all other functions. The last one is called before calls
    /// of the host.
    pub(crate) first: u32,
}

impl Counted {
    /// The valid `module`, with calls in place of its bulk instructions and before its calls of the
    /// host.
    pub(crate) fn rewrite(mut self, module: &[u8]) -> Result<Vec<u8>, Error> {
        let mut rewritten = Module::new();
        self.parse_core_module(&mut rewritten, wasmparser::Parser::new(0), module)?;
        Ok(rewritten.finish())
    }
}

impl Reencode for Counted {
    type Error = Infallible;

    fn instruction<'a>(&mut self, operator: Operator<'a>) -> Result<Instruction<'a>, Error> {
        let of = Bulk::of(&operator);
        match self.bulk.iter().position(|bulk| Some(*bulk) == of) {
            Some(at) => Ok(Instruction::Call(self.first + at as u32)),
            None => utils::instruction(self, operator),
        }
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: wasmparser::TypeSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_type_section(self, types, section)?;
        types.ty().function([ValType::I32; 3], []);
        types.ty().function([], []);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_function_section(self, functions, section)?;
        for _ in &self.bulk {
            functions.function(self.type_index);
        }
        functions.function(self.type_index + 1);
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_code_section(self, code, section)?;
        for bulk in &self.bulk {
            code.function(&counted(*bulk));
        }
        code.function(&toll());
        Ok(())
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: FunctionBody<'_>,
    ) -> Result<(), Error> {
        let mut function = self.new_function_with_parsed_locals(&body)?;
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            let operator = operators.read()?;
            if calls_host(&operator) {
                function.instruction(&Instruction::Call(self.first + self.bulk.len() as u32));
            }
            function.instruction(&self.instruction(operator)?);
        }
        code.function(&function);
        Ok(())
    }

    /// Leaves out what is not run, such as names: it may tell of places in the code that move.
    fn parse_custom_section(
        &mut self,
        _: &mut Module,
        _: CustomSectionReader<'_>,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// The function that takes time.
fn toll() -> Function {
    let mut function = Function::new([(1, ValType::I32)]);
    let mut code = function.instructions();
    code.i32_const(TOLL).local_set(0).loop_(BlockType::Empty);
    code.local_get(0).i32_const(1).i32_sub().local_tee(0).br_if(0).end().end();
    function
}

// The locals of a counted function: its parameters.
const TO: u32 = 0;
const FROM: u32 = 1;
const LEN: u32 = 2;

/// The function that does what a bulk instruction does, piece by piece.
fn counted(bulk: Bulk) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    // One piece is one instruction, which checks its bounds itself.
    code.local_get(LEN).i32_const(PIECE).i32_le_u().if_(BlockType::Empty);
    native(code.local_get(TO).local_get(FROM).local_get(LEN), bulk).return_().end();
    judge(&mut code, bulk);
    match bulk {
        Bulk::Copy => {
            // A destination behind the source is copied from its end, as the two may overlap.
            code.local_get(TO).local_get(FROM).i32_gt_u().if_(BlockType::Empty);
            backwards(&mut code, bulk);
            code.else_();
            forwards(&mut code, bulk);
            code.end();
        }
        Bulk::Fill | Bulk::Init(_) => forwards(&mut code, bulk),
    }
    native(code.local_get(TO).local_get(FROM).local_get(LEN), bulk).end();
    function
}

/// Traps unless the whole range is inside, before its first byte is written: no end may overflow,
/// and a native instruction of no bytes at the ends checks the rest.
fn judge(code: &mut InstructionSink<'_>, bulk: Bulk) {
    let places: &[u32] = if bulk == Bulk::Fill { &[TO] } else { &[TO, FROM] };
    for &place in places {
        end(code, place).local_get(place).i32_lt_u().if_(BlockType::Empty).unreachable().end();
    }
    end(code, TO);
    end(code, FROM);
    native(code.i32_const(0), bulk);
}

/// Pieces from the first one on, until no more than one is left.
fn forwards(code: &mut InstructionSink<'_>, bulk: Bulk) {
    code.loop_(BlockType::Empty);
    native(code.local_get(TO).local_get(FROM).i32_const(PIECE), bulk);
    code.local_get(TO).i32_const(PIECE).i32_add().local_set(TO);
    if bulk != Bulk::Fill {
        code.local_get(FROM).i32_const(PIECE).i32_add().local_set(FROM);
    }
    code.local_get(LEN).i32_const(PIECE).i32_sub().local_tee(LEN);
    code.i32_const(PIECE).i32_gt_u().br_if(0).end();
}

/// Pieces from the last one on, until no more than one is left.
fn backwards(code: &mut InstructionSink<'_>, bulk: Bulk) {
    code.loop_(BlockType::Empty);
    code.local_get(LEN).i32_const(PIECE).i32_sub().local_set(LEN);
    end(code, TO);
    end(code, FROM);
    native(code.i32_const(PIECE), bulk);
    code.local_get(LEN).i32_const(PIECE).i32_gt_u().br_if(0).end();
}

/// The place where a range ends.
fn end<'a, 'b>(code: &'a mut InstructionSink<'b>, place: u32) -> &'a mut InstructionSink<'b> {
    code.local_get(place).local_get(LEN).i32_add()
}

/// The instruction itself.
fn native<'a, 'b>(code: &'a mut InstructionSink<'b>, bulk: Bulk) -> &'a mut InstructionSink<'b> {
    match bulk {
        Bulk::Copy => code.memory_copy(0, 0),
        Bulk::Fill => code.memory_fill(0),
        Bulk::Init(data) => code.memory_init(0, data),
    }
}
