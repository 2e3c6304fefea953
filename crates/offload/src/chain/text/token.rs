//! Words and signs of the text form.

use logos::Logos;

#[derive(Logos, Clone, Copy, PartialEq, Eq, Debug)]
#[logos(skip r"[ \t\r]+", skip(r"#[^\n]*", allow_greedy = true))]
pub(super) enum Token {
    #[regex("[A-Za-z_][A-Za-z0-9_]*")]
    Name,
    #[regex("[0-9][0-9A-Za-z_]*")]
    Number,
    #[regex(r#""[^"\n]*""#)]
    Text,
    #[token("\n")]
    Newline,
    #[token(",")]
    Comma,
    #[token(":")]
    Colon,
    #[token(".")]
    Dot,
    #[token("+")]
    Plus,
    #[token("&")]
    Ampersand,
    #[token("=")]
    Is,
    #[token("->")]
    To,
    #[token("=>")]
    Becomes,
    #[token("==")]
    Equal,
    #[token("!=")]
    NotEqual,
    #[token("<")]
    Less,
    #[token("<=")]
    AtMost,
    #[token(">")]
    Greater,
    #[token(">=")]
    AtLeast,
    #[token("{")]
    Open,
    #[token("}")]
    Close,
    #[token("[")]
    OpenPointer,
    #[token("]")]
    ClosePointer,
    /// Behind the last line.
    End,
}

impl Token {
    /// What it is called in a message.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Token::Name => "a name",
            Token::Number => "a number",
            Token::Text => "a text in quotes",
            Token::Newline => "the end of the line",
            Token::Comma => "`,`",
            Token::Colon => "`:`",
            Token::Dot => "`.`",
            Token::Plus => "`+`",
            Token::Ampersand => "`&`",
            Token::Is => "`=`",
            Token::To => "`->`",
            Token::Becomes => "`=>`",
            Token::Equal => "`==`",
            Token::NotEqual => "`!=`",
            Token::Less => "`<`",
            Token::AtMost => "`<=`",
            Token::Greater => "`>`",
            Token::AtLeast => "`>=`",
            Token::Open => "`{`",
            Token::Close => "`}`",
            Token::OpenPointer => "`[`",
            Token::ClosePointer => "`]`",
            Token::End => "the end of the file",
        }
    }
}
