// ${text}
namespace tracea {

DEV void apply(
    //% for x in operands
    const ${x.held} x${x.place},
    //% endfor
    //% for y in results
    ${y.held}& y${y.place}${"," if not loop.last else ") {"}
    //% endfor
  //% for line in steps
  ${line}
  //% endfor
  //% for y in results
  y${y.place} = ${y.expression};
  //% endfor
}

}  // namespace tracea
