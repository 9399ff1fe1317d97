! SPDX-License-Identifier: Apache-2.0
! eh_fortran.f90 prints backtraces: the same with any unwinder.
module shapes
contains
  recursive subroutine deep(n)
    integer, intent(in) :: n
    if (n == 0) then
      call backtrace()
      error stop 3
    end if
    call deep(n - 1)
    print *, n
  end subroutine
end module

program eh_fortran
  use shapes
  print *, 'deep'
  call deep(5)
end program
